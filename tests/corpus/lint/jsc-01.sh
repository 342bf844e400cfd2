#!/bin/bash -x
#SBATCH --account=budget
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=48
#SBATCH --output=mpi-out.%j
#SBATCH --error=mpi-err.%j
#SBATCH --time=00:15:00
#SBATCH --partition=devel

srun ./mpi-prog
