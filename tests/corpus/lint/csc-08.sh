#!/bin/bash
#SBATCH --job-name=cp2k
#SBATCH --account=project_name
#SBATCH --partition=medium
#SBATCH --time=24:00:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=128

module load gcc/11.2.0 openmpi/4.1.2 cp2k/2024.1
cd /scratch/project_name/runs/$CASE
rm -rf *.tmp old/
srun cp2k.psmp md.inp > md.out
