#!/bin/bash
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
#SBATCH --time=08:00:00
#SBATCH --array=1-10%1
#SBATCH --job-name=train_chain
#SBATCH --output=%x_%A_%a.out
#SBATCH --signal=B:USR1@300

# ten segments one after the other; each goes on where the one before has stopped
[ -f runs/unet/DONE ] && exit 0

module load anaconda3/2022.05 cuda/12.1
source activate unet
exec python train.py --run-dir runs/unet --resume-latest --save-on-usr1
