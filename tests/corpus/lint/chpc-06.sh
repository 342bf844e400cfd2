#!/bin/bash
#SBATCH --time=24:00:00
#SBATCH --ntasks=1
#SBATCH --account=mygroup
#SBATCH --partition=granite
#SBATCH --requeue
#SBATCH --signal=B:USR1@60

requeue() { echo "requeue at $(date)"; scontrol requeue $SLURM_JOB_ID; sleep 60; }
trap requeue USR1
# fit.py saves on USR1
python fit.py --resume &
wait
