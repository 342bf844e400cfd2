#!/bin/bash -l
#SBATCH --job-name=resume-fixed
#SBATCH --time=06:00:00
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --account=project
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@300

CKPT=$SCRATCH/exp12/step_40000.pt
srun python train.py --resume $CKPT --save-dir $SCRATCH/exp12
