#!/bin/bash
#SBATCH --job-name=ckpt-train
#SBATCH --partition=ckpt-g2
#SBATCH --account=mylab
#SBATCH --gpus=1
#SBATCH --mem=64G
#SBATCH --cpus-per-task=8
#SBATCH --time=10-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

source ~/.bashrc
conda activate flow
exec holdfast run --run /gscratch/mylab/runs/flow -- python train.py --config flow.yaml
