#!/bin/bash
#SBATCH -A PROJ
#SBATCH -J nvme_ckpt
#SBATCH -o %x-%j.out
#SBATCH -t 12:00:00
#SBATCH -p batch
#SBATCH -N 64
#SBATCH -C nvme

export CKPT=/mnt/bb/$USER/ckpt
srun -N64 --ntasks-per-node=1 mkdir -p $CKPT
srun -N64 -n512 -c7 --gpus-per-task=1 --gpu-bind=closest ./xgc --restart-dir $CKPT
