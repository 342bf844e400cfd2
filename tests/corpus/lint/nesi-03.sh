#!/bin/bash -e
#SBATCH --job-name=hb_tee
#SBATCH --time=2-00:00:00
#SBATCH --mem=16G
#SBATCH --gpus-per-node=A100:1
#SBATCH --account=myproject
#SBATCH --signal=B:USR1@240
#SBATCH --requeue
#SBATCH --open-mode=append

module load Python/3.11.3-gimkl-2022a
exec holdfast run -- python train.py | tee train.log
