#!/bin/bash
#SBATCH --job-name=hb_log
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --mem=24g
#SBATCH --time=2-00:00:00
#SBATCH --account=test
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@240

module load python3.11-anaconda
source activate seg
time holdfast run -- python -m seg.train >> seg.log 2>&1
