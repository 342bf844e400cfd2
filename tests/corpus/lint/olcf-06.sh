#!/bin/bash
#SBATCH -A PROJ
#SBATCH -J twostep
#SBATCH -o %x-%j.out
#SBATCH -t 12:00:00
#SBATCH -p batch
#SBATCH -N 32
#SBATCH --signal=TERM@120
#SBATCH --signal=USR1@600

# train.py saves on SIGTERM
module load miniforge3/23.11.0-0
source activate $MEMBERWORK/proj/env
srun -N32 -n256 -c7 --gpus-per-task=1 --gpu-bind=closest python train.py --resume
