#!/bin/bash
#SBATCH --job-name=test_parallel
#SBATCH -D .
#SBATCH --output=mpi_%j.out
#SBATCH --error=mpi_%j.err
#SBATCH --ntasks=224
#SBATCH --cpus-per-task=1
#SBATCH --time=00:02:00
#SBATCH --qos=gp_debug
#SBATCH --account=group

srun ./mpi_binary
