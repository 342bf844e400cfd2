#!/bin/bash
#SBATCH --job-name=loop-forever
#SBATCH --partition=long
#SBATCH --gres=gpu:1
#SBATCH --mem=16G
#SBATCH --time=10:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

module load miniconda/3
conda activate nlp

srun python pretrain.py --out $SCRATCH/pretrain --resume auto
scontrol requeue $SLURM_JOB_ID
