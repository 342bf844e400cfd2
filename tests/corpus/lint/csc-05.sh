#!/bin/bash
#SBATCH --job-name=pytorch_ddp
#SBATCH --account=project_name
#SBATCH --partition=gpumedium
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --gres=gpu:a100:4
#SBATCH --time=36:00:00
#SBATCH --signal=SIGUSR1@300

module load pytorch/2.4
# Lightning saves on SIGUSR1 and requeues its job
srun python3 lightning_main.py --accelerator gpu --devices 4 --nodes 2
