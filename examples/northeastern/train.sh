#!/bin/bash
# A long training in ten jobs of ten minutes, one after the other: sbatch train.sh
#SBATCH --job-name=train
#SBATCH --partition=gpu
#SBATCH --gres=gpu:1
#SBATCH --mem=10G
#SBATCH --time=00:10:00
#SBATCH --array=1-10%1       # ten tasks, one at a time, each going on where the last one stopped
#SBATCH --output=train-%A.out
#SBATCH --requeue            # preempted, or its node lost: Slurm starts the task again
#SBATCH --open-mode=append   # the tasks share one output
#SBATCH --signal=B:USR1@60   # a notice, a minute before the time is over

# Until holdfast listens the notice must not end this shell. Holdfast computes the deadline itself.
trap '' USR1

module load miniconda3/2020-09
source activate torch

# --chain: the task that finishes the training cancels the rest. --no-requeue: the next task goes on.
exec holdfast run --run .holdfast/train --chain --no-requeue -- python train.py
