#!/bin/bash
#SBATCH --time=36:00:00
#SBATCH --partition=medium
#SBATCH --ntasks-per-node=64
#SBATCH --cpus-per-task=2
#SBATCH --nodes=2
#SBATCH --account=project_name
#SBATCH --job-name=gmx-prod
#SBATCH --array=1-5%1

# this script runs a 256 core (2 full nodes) gromacs job, in five parts one after the other
export OMP_NUM_THREADS=2
module purge
module load gcc/11.2.0 openmpi/4.1.2 gromacs/2024.2

[ -f confout.gro ] || srun gmx_mpi mdrun -s topol -maxh 35.8 -cpi state.cpt -append
