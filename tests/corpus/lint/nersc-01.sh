#!/bin/bash
#SBATCH -A myproject
#SBATCH -C cpu
#SBATCH -q debug
#SBATCH -N 2
#SBATCH -t 00:20:00
#SBATCH -J hello-mpi

export OMP_NUM_THREADS=8
export OMP_PLACES=threads
export OMP_PROC_BIND=spread

srun -n 32 -c 16 --cpu-bind=cores ./xthi.x
