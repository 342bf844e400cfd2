#!/bin/bash
#SBATCH --job-name=hold
#SBATCH --time=2-00:00:00
#SBATCH --gres=gpu:A40:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=48G
#SBATCH --array=1-12%4
#SBATCH --output=%x_%A_%a.out
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

module load miniforge3
conda activate seg3d
fold=$(( (SLURM_ARRAY_TASK_ID - 1) % 4 ))
seed=$(( (SLURM_ARRAY_TASK_ID - 1) / 4 ))
exec holdfast run --run "runs/fold$fold-seed$seed" -- python train.py --fold "$fold" --seed "$seed"
