#!/bin/bash
#SBATCH --job-name=lowprio
#SBATCH --account=co_projectname
#SBATCH --partition=savio4_gpu
#SBATCH --qos=savio_lowprio
#SBATCH --gres=gpu:A5000:1
#SBATCH --cpus-per-task=4
#SBATCH --time=72:00:00

module load ml/pytorch/2.3.1-py3.11.7
python agent.py --frames 200000000
