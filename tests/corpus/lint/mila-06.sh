#!/bin/bash
#SBATCH --job-name=orion-sweep
#SBATCH --array=1-50%10
#SBATCH --partition=long
#SBATCH --gres=gpu:1
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --output=sweep-%A_%a.out

module load miniconda/3
conda activate orion

RUN=$SCRATCH/sweep/$SLURM_ARRAY_TASK_ID
exec holdfast run --run "$RUN" -- python train.py --dir "$RUN" --lr "$(sed -n "${SLURM_ARRAY_TASK_ID}p" lrs.txt)"
