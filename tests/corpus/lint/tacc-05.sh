#!/bin/bash
#SBATCH -J train-gpu
#SBATCH -o train-gpu.o%j
#SBATCH -p gpu-a100
#SBATCH -N 1
#SBATCH -n 1
#SBATCH -A myproject

module load cuda/12.2 python3

#SBATCH -t 48:00:00

ibrun -n 1 python3 train.py --epochs 400
