#!/bin/bash
#SBATCH -J tmp_ckpt
#SBATCH -o ./%x.%j.out
#SBATCH -D ./
#SBATCH --clusters=hpda2
#SBATCH --partition=lrz-hpda2
#SBATCH --gres=gpu:1
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@180

module load slurm_setup
export CKPT=/tmp/$SLURM_JOB_ID
mkdir -p $CKPT
srun --ntasks=1 enroot start pytorch python train.py --ckpt $CKPT --resume
