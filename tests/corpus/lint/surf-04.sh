#!/bin/bash
#SBATCH -p gpu_a100
#SBATCH --gpus=1
#SBATCH -t 24:00:00
#SBATCH -J tune
#SBATCH --array=0-11
#SBATCH -o tune.log

module load 2023 TensorFlow/2.15.1-foss-2023a-CUDA-12.1.1
lrs=(1e-2 1e-3 1e-4)
seeds=(1 2 3 4)
lr=${lrs[$((SLURM_ARRAY_TASK_ID % 3))]}
seed=${seeds[$((SLURM_ARRAY_TASK_ID / 3))]}
python keras_train.py --lr $lr --seed $seed --backup-dir backup/lr$lr
