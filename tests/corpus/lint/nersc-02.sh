#!/bin/bash
#SBATCH --account=myproject
#SBATCH --constraint=gpu
#SBATCH --qos=preempt
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@180          # the training step itself catches it and saves
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=train-%j.out

module load pytorch/2.3.1
export MASTER_ADDR=$(hostname)

# goes on from the newest checkpoint in $SCRATCH/gpt-small, or begins there
srun --ntasks-per-node=4 -c 32 python train.py --out "$SCRATCH/gpt-small" --resume auto
