#!/bin/bash
#SBATCH --job-name="usr1-twice"
#SBATCH --output="u.%j.out"
#SBATCH --partition=gpu-shared
#SBATCH --gpus=1
#SBATCH --account=proj
#SBATCH -t 24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@60

exec holdfast run -- python train.py
