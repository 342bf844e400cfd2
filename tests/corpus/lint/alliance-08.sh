#!/bin/bash
#SBATCH --account=def-someprof
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=32
#SBATCH --mem-per-cpu=2000M
#SBATCH --time=02-00:00

module load StdEnv/2023 julia/1.10.0
# finished parameter sets are in the joblog; failed and lost ones run again
srun --ntasks=1 parallel --jobs 32 --joblog sweep.log julia point.jl {} ::: $(seq 1 5000)
