#!/bin/bash
#SBATCH --job-name=scav
#SBATCH --partition=scavenge_gpu
#SBATCH --gpus=a100:1
#SBATCH --time=1-00:00:00
#SBATCH --cpus-per-task=4
#SBATCH --signal=USR1@120
#SBATCH --output=out_%j.txt

module load miniconda
conda activate dl
# saves on USR1
srun python train.py --ckpt-dir ~/scratch/ckpt --resume auto
