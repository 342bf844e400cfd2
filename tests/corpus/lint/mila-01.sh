#!/bin/bash
#SBATCH --job-name=single-gpu
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-task=l40s:1
#SBATCH --mem-per-gpu=16G
#SBATCH --time=00:15:00

set -e
echo "$(hostname), $(date)"

tar xzf /network/datasets/cifar10/cifar-10-python.tar.gz -C $SLURM_TMPDIR
srun uv run python main.py --epochs 1
