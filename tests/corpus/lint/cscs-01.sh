#!/bin/bash -l
#SBATCH --job-name=xthi
#SBATCH --time=00:10:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --account=project
#SBATCH --uenv=prgenv-gnu/24.11:v1

srun ./affinity.gpu
