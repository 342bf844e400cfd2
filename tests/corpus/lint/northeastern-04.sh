#!/bin/bash
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:v100-sxm2:1
#SBATCH --time=08:00:00
#SBATCH --output=%x_%j.out

module load anaconda3/2022.05
source activate gan

nohup python train_gan.py > gan.log 2>&1 &
