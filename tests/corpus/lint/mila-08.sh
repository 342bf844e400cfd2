#!/bin/bash
#SBATCH --job-name=multi-node
#SBATCH --partition=short-unkillable
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=6
#SBATCH --mem=0
#SBATCH --time=3:00:00
# SBATCH --signal=TERM@180

# main.py saves on SIGTERM, three minutes before the end
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)
srun --kill-on-bad-exit uv run python main.py --save $SCRATCH/multi
