#!/bin/bash
# FILENAME:  hello.sub

#SBATCH -A standby
#SBATCH --nodes=1 --ntasks=20
#SBATCH --time=00:10:00
#SBATCH --job-name mpi_hello

module load gcc openmpi
srun ./mpi_hello
