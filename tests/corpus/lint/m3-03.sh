#!/bin/bash
#SBATCH --job-name=hold3
#SBATCH --time=2-00:00:00
#SBATCH --gres=gpu:A40:1
#SBATCH --mem=48G
#SBATCH --array=1-12%4
#SBATCH --output=%x_%A_%a.out
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

module load miniforge3
conda activate seg3d
exec holdfast run --run "runs/$SLURM_ARRAY_JOB_ID" -- python train.py --seed "$SLURM_ARRAY_TASK_ID"
