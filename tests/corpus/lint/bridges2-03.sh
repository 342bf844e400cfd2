#!/bin/bash
#SBATCH -N 1
#SBATCH -p GPU-shared
#SBATCH -t 48:00:00
#SBATCH --gpus=v100-32:1
#SBATCH --array=1-5
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH -o fold.out

module load anaconda3
conda activate clip
exec holdfast run --run runs/clip -- python train_clip.py --fold $SLURM_ARRAY_TASK_ID
