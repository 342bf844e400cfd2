#!/bin/bash
#SBATCH --job-name="preemptible"
#SBATCH --output="pre.%j.out"
#SBATCH --partition=gpu-preempt
#SBATCH --gpus=1
#SBATCH --cpus-per-task=10
#SBATCH --mem=90G
#SBATCH --account=proj
#SBATCH --no-requeue
#SBATCH -t 2-00:00:00

module load singularitypro
singularity exec --nv pytorch.sif python pretrain.py --resume auto --save-every 600
