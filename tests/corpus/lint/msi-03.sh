#!/bin/bash -l
#SBATCH --ntasks=1
#SBATCH --mem=32g
#SBATCH -p preempt-gpu
#SBATCH --gres=gpu:a100:1
#SBATCH --requeue
#SBATCH --open-mode=append
module load python3
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300

exec holdfast run -- python train.py
