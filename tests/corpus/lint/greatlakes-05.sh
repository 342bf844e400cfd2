#!/bin/bash
#SBATCH --job-name=two_runs
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --mem=48g
#SBATCH --time=24:00:00
#SBATCH --account=test
#SBATCH --partition=gpu

module load cuda/12.3.0 python3.11-anaconda
CUDA_VISIBLE_DEVICES=0 python train.py --net a --save-dir save &
CUDA_VISIBLE_DEVICES=1 python train.py --net b --save-dir save &
wait
