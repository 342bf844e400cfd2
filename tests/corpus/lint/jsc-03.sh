#!/bin/bash -x
#SBATCH --account=budget
#SBATCH --partition=batch
#SBATCH --time=24:00:00
#SBATCH --output=het-%j.out
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH hetjob
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=48

# server on the first component, workers on the second
srun --het-group=0 ./server --port 5555 : --het-group=1 ./worker
