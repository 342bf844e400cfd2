#!/bin/bash
#SBATCH --job-name=train
#SBATCH --ntasks=1
#SBATCH --partition=amperenodes-medium
#SBATCH --gres=gpu:1
#SBATCH --time=48:00:00
#SBATCH --mem=64G
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

module load Miniforge3
conda activate base
for fold in 0 1 2 3 4; do
    holdfast run --run runs/fold$fold -- python train.py --fold $fold
done
