#!/bin/bash
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
#SBATCH --time=08:00:00
#SBATCH --array=1-10
#SBATCH --job-name=seeds
#SBATCH --output=%x_%A_%a.out

module load anaconda3/2022.05 cuda/12.1
source activate unet
python train.py --seed $SLURM_ARRAY_TASK_ID --checkpoint-dir checkpoints --resume
