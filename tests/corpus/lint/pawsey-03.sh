#!/bin/bash --login
#SBATCH --account=project
#SBATCH --partition=work
#SBATCH --ntasks=128
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@120

module load vasp/5.4.4
srun -N 1 -n 128 -c 1 vasp_gam
