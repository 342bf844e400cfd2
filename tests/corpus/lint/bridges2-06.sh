#!/bin/bash
#SBATCH -N 1
#SBATCH -p RM-shared
#SBATCH -t 24:00:00
#SBATCH --ntasks-per-node=16
#SBATCH --open-mode=append

./optimise --state opt.json --resume
status=$?
# done or not, once more
scontrol requeue $SLURM_JOB_ID
exit $status
