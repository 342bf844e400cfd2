#!/bin/bash --login
#SBATCH --account=project
#SBATCH --partition=debug
#SBATCH --ntasks=4
#SBATCH --time=00:05:00
#SBATCH --export=NONE

export OMP_NUM_THREADS=1
srun -N 1 -n 4 -c 1 ./hello
