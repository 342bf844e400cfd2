#!/bin/bash
# A longer training in ten jobs of ten minutes, one after the other: sbatch submit_tf_array.bash [EPOCHS]
#SBATCH --job-name=myrun
#SBATCH --time=00:10:00
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
#SBATCH --mem=10Gb
#SBATCH --array=1-10%1       # ten tasks, one at a time, each going on where the last one stopped
#SBATCH --output=myrun-%A.out
#SBATCH --requeue            # preempted, or its node lost: Slurm starts the task again
#SBATCH --open-mode=append   # the tasks share one output
#SBATCH --signal=B:USR1@60   # a notice, a minute before the time is over

# Until holdfast listens the notice must not end this shell. Holdfast computes the deadline itself.
trap '' USR1

module load miniconda3/2020-09
source activate tf_gpu

# --chain: the task that finishes the training cancels the rest. --no-requeue: the next task goes on.
exec holdfast run --run .holdfast/myrun --chain --no-requeue -- python train_with_checkpoints.py "${1:-500}"
