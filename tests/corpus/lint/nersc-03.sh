#!/bin/bash
#SBATCH -A myproject
#SBATCH -C gpu
#SBATCH -q preempt
#SBATCH -N 1
#SBATCH --gpus-per-node=4
#SBATCH -t 12:00:00
#SBATCH --signal=B:USR1@120
#SBATCH -o preempt_%j.log

module load pytorch/2.3.1
srun -n 4 python finetune.py --save-dir $PSCRATCH/finetune --resume
