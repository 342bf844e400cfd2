#!/bin/bash
#SBATCH -p mit_preemptable
#SBATCH -t 1-00:00:00
#SBATCH -c 8
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@180

module load miniforge
source activate mc
{ holdfast run -- python mc.py; echo "ended with $?"; } |& tee mc.log
