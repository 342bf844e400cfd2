#!/bin/bash
#SBATCH --job-name=hb
#SBATCH --time=7-00:00:00
#SBATCH --partition=owners
#SBATCH -G 1
#SBATCH -C GPU_MEM:24GB
#SBATCH --dependency=singleton
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

ml python/3.9.0 py-pytorch/2.0.0_py39
holdfast run -- python3 train.py --config big.yaml 2>&1 | tee -a train.log
