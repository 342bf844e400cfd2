#!/bin/bash
#SBATCH -A myproject
#SBATCH -C gpu&hbm80g
#SBATCH -q regular
#SBATCH -N 8
#SBATCH --gpus-per-node=4
#SBATCH -t 24:00:00
#SBATCH -J llm-pretrain

set -x
rm -rf $SCRATCH/ckpt/llm && mkdir -p $SCRATCH/ckpt/llm

srun --ntasks-per-node=1 shifter --image=nersc/pytorch:24.06 \
    torchrun --nnodes=8 --nproc-per-node=4 --rdzv-backend=c10d \
    --rdzv-endpoint=$(scontrol show hostnames | head -1):29500 \
    pretrain.py --ckpt $SCRATCH/ckpt/llm
