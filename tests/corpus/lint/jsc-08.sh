#!/bin/bash -x
#SBATCH --account=budget
#SBATCH --nodes=1
#SBATCH --time=24:00:00
#SBATCH --partition=booster
#SBATCH --gres=gpu:4
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH --output=hb-%j.out

module load Stages/2024 GCC CUDA PyTorch
exec holdfast run --retries 2 -- \
    torchrun --standalone --nproc-per-node=4 train.py --config configs/base.yaml
