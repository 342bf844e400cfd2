#!/bin/bash
#SBATCH --job-name=resnet-hf     # create a short name for your job
#SBATCH --nodes=1                # node count
#SBATCH --ntasks=1               # total number of tasks across all nodes
#SBATCH --gres=gpu:1             # number of gpus per node
#SBATCH --time=10:00:00          # total run time limit (HH:MM:SS)
#SBATCH --signal=B:USR1@240
#SBATCH --requeue
#SBATCH --open-mode=append

module purge
module load anaconda3/2024.6
conda activate torch-env

holdfast run -- python train.py --epochs=200
echo "finished at $(date)"
