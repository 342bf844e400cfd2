#!/bin/bash
#SBATCH --job-name="hellompi"
#SBATCH --output="hellompi.%j.%N.out"
#SBATCH --partition=debug
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=128
#SBATCH --mem=0
#SBATCH --account=proj
#SBATCH --export=ALL
#SBATCH -t 00:10:00

module purge
module load slurm cpu/0.17.3b gcc/10.2.0 openmpi/4.1.3
srun --mpi=pmi2 -n 256 ../hello_mpi
