#!/bin/bash
#SBATCH -p mit_normal
#SBATCH -t 12:00:00
#SBATCH -c 4
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@240

# saves on USR1 and ends
again() { kill -USR1 $p; wait $p; scontrol requeue $SLURM_JOB_ID; }
trap again USR1
./tebd --state psi.h5 --continue &
p=$!
wait $p
