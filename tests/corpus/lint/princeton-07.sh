#!/bin/bash
#SBATCH --job-name=ddp-torch     # create a short name for your job
#SBATCH --nodes=2                # node count
#SBATCH --ntasks-per-node=2      # total number of tasks per node
#SBATCH --cpus-per-task=8        # cpu-cores per task
#SBATCH --mem=64G                # total memory per node
#SBATCH --gres=gpu:2             # number of gpus per node
#SBATCH --time=48:00:00          # total run time limit (HH:MM:SS)

export MASTER_PORT=$((10000 + SLURM_JOB_ID % 10000))
export WORLD_SIZE=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

module purge
module load anaconda3/2024.6
conda activate torch-env

srun python ddp.py --resume checkpoints/epoch_12.pt
