#!/bin/bash
#SBATCH --ntasks=1
#SBATCH --time=5
#SBATCH --mem=4gb
#SBATCH --partition=single
#SBATCH --job-name=too-short
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@30

# an epoch takes about ten minutes; a checkpoint is written after each
source ~/venv/bin/activate
exec python train.py --resume --checkpoint-every-epoch
