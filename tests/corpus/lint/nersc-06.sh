#!/bin/bash
#SBATCH -A myproject
#SBATCH -C cpu
#SBATCH -q shared
#SBATCH -n 1
#SBATCH -c 4
#SBATCH -t 00:30:00
#SBATCH --array=1-200%50
#SBATCH -o logs/%A_%a.out

mkdir -p logs results
srun ./fit_event --in events/$SLURM_ARRAY_TASK_ID.h5 --out results/$SLURM_ARRAY_TASK_ID.json
