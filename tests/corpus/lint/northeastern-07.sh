#!/bin/bash
#SBATCH --partition=multigpu
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:4
#SBATCH --time=24:00:00
#SBATCH --job-name=diffusion
#SBATCH --output=%x_%j.out
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

module load anaconda3/2022.05 cuda/12.1
source activate diffusion

exec holdfast run -- torchrun --standalone --nproc-per-node=4 train.py --config base.yaml
