#!/bin/bash
#SBATCH --job-name=fixed
#SBATCH --time=1-00:00:00
#SBATCH --gres=gpu:T4:1
#SBATCH --mem=32G
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@240

module load miniforge3
conda activate asr
# saves on USR1
srun python train_asr.py --out exp/asr --resume-from exp/asr/epoch3.ckpt
