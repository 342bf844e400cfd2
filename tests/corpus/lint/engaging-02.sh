#!/bin/bash
#SBATCH -p mit_preemptable
#SBATCH -t 2-00:00:00
#SBATCH -G h100:1
#SBATCH -c 16
#SBATCH --mem=64G
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

module load miniforge
source activate jax
python train.py --workdir /orcd/scratch/me/run --resume
