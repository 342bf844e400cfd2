#!/bin/bash
#SBATCH -A PROJ
#SBATCH -J too_tight
#SBATCH -o %x-%j.out
#SBATCH -t 00:10:00
#SBATCH -p batch
#SBATCH -N 1024
#SBATCH --signal=USR1@1200

srun -N1024 -n8192 -c7 --gpus-per-task=1 ./hacc indat.params --restart-if-present --stop-on-usr1
