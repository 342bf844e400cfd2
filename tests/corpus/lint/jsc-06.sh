#!/bin/bash -x
#SBATCH --account=budget
#SBATCH --nodes=1
#SBATCH --time=12:00:00
#SBATCH --partition=dc-gpu
#SBATCH --gres=gpu:4
#SBATCH --output=train.%j
#SBATCH --signal=B:USR1@5

# each checkpoint has 160 GB
source "$PROJECT/venv/activate.sh"
exec torchrun --standalone --nproc-per-node=4 train.py --save "$SCRATCH/ckpt"
