#!/bin/bash -x
#SBATCH --account=budget
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=12
#SBATCH --gres=gpu:4
#SBATCH --output=gpu-out.%j
#SBATCH --error=gpu-err.%j
#SBATCH --open-mode=append
#SBATCH --time=24:00:00
#SBATCH --partition=booster
#SBATCH --signal=TERM@600
#SBATCH --requeue

module load Stages/2024 GCC OpenMPI PyTorch
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK}
export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)i"

# catches SIGTERM, saves, and goes on from the newest checkpoint at its next start
srun --cpu-bind=none,v env PYTHONUNBUFFERED=1 python -m megatron_train \
    --load "$SCRATCH/budget/run7" --save "$SCRATCH/budget/run7" --exit-signal-handler
