#!/bin/bash
#SBATCH --job-name=preempted
#SBATCH --partition=long
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-task=1
#SBATCH --mem=24G
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@300           # SIGTERM 5 min before the limit

module load miniconda/3
conda activate pytorch

exec srun python main.py --ckpt $SCRATCH/ckpt/$SLURM_JOB_ID
