#!/bin/bash
#SBATCH --job-name=resnet        # create a short name for your job
#SBATCH --nodes=1                # node count
#SBATCH --ntasks=1               # total number of tasks across all nodes
#SBATCH --cpus-per-task=8        # cpu-cores per task
#SBATCH --mem=32G                # total memory per node
#SBATCH --gres=gpu:1             # number of gpus per node
#SBATCH --time=24:00:00          # total run time limit (HH:MM:SS)
#SBATCH --mail-type=fail         # send email if job fails

module purge
module load anaconda3/2024.6
conda activate torch-env

python train_classifier.py --epochs=200
