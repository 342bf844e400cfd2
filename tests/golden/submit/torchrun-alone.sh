#!/bin/bash
# Written by holdfast submit. Change it as you like: holdfast lint .holdfast/train/job.sh, then sbatch it.
#SBATCH --job-name=train
#SBATCH --output=.holdfast/train/slurm-%j.out
#SBATCH --gpus-per-node=4
#SBATCH --time=60
#SBATCH --no-requeue
#SBATCH --open-mode=append   # or each start would empty the output
#SBATCH --signal=B:USR2@120  # a notice, 120 to 150 s before the time is over

# Until holdfast listens the notice must not end this shell. Holdfast computes the deadline itself.
trap '' USR2

# Otherwise torchrun would die of USR2, and kill its processes after 30 s. Old versions of torch know neither.
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR2 PET_SHUTDOWN_TIMEOUT=120

# exec: holdfast takes the place of this shell, and so hears what Slurm has to say.
exec holdfast run --run .holdfast/train --lead=120 --no-requeue -- torchrun --standalone --nproc-per-node=4 train.py
