#!/bin/bash
#SBATCH --job-name=ml_emulator
#SBATCH --partition=gpu
#SBATCH --gpus=4
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=12:00:00
#SBATCH --account=myproject
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

source activate emulator
(holdfast run -- torchrun --standalone --nproc-per-node=4 train.py) 2>&1 | tee -a emulator.log
