#!/bin/bash
#SBATCH --job-name=steps
#SBATCH --time=24:00:00
#SBATCH --nodes=1 --ntasks-per-node=8
#SBATCH --gpus-per-node=1
#SBATCH --account=PROJECT

module load miniconda3/24.1.2-py310
conda activate seg
set -e
python prepare.py --raw raw --out data
python train.py --data data --epochs 300 --out model.pt
python evaluate.py --model model.pt | tee scores.txt
