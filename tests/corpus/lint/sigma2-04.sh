#!/bin/bash
#SBATCH --account=nnXXXXk
#SBATCH --job-name=arr
#SBATCH --array=1-100
#SBATCH --time=06:00:00
#SBATCH --mem-per-cpu=2G
#SBATCH --output=arr-%A.out

srun ./fit --seed $SLURM_ARRAY_TASK_ID --resume state_$SLURM_ARRAY_TASK_ID.bin
