#!/bin/bash
#SBATCH --job-name=cryo
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --partition=amperenodes
#SBATCH --gres=gpu:2
#SBATCH --time=12:00:00
#SBATCH --mem=120G
#SBATCH --output=logs/%x_%j.out
#SBATCH --error=logs/%x_%j.err

module load relion/4.0
relion_refine --o Class3D/job012/run --i particles.star --iter 25 --gpu --j 16
