#!/bin/bash
#SBATCH -N 1
#SBATCH -p GPU-shared
#SBATCH -t 48:00:00
#SBATCH --gpus=v100-32:1
#SBATCH --requeue
#SBATCH --signal=B:USR1@300

module load anaconda3
conda activate clip
# --open-mode is not given
exec holdfast run -- python train_clip.py
