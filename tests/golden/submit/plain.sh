#!/bin/bash
# Written by holdfast submit. Change it as you like: holdfast lint .holdfast/train/job.sh, then sbatch it.
#SBATCH --job-name=train
#SBATCH --output=.holdfast/train/slurm-%j.out
#SBATCH --time=12:00:00
#SBATCH --partition=long
#SBATCH --chdir=/home/ada/cats
#SBATCH --requeue            # preempted, or its node lost: Slurm starts the job again
#SBATCH --open-mode=append   # or each start would empty the output
#SBATCH --signal=B:USR1@120  # a notice, 120 to 150 s before the time is over

# Until holdfast listens the notice must not end this shell. Holdfast computes the deadline itself.
trap '' USR1

# exec: holdfast takes the place of this shell, and so hears what Slurm has to say.
exec holdfast run --run .holdfast/train --lead=120 -- python train.py --lr 1e-3
