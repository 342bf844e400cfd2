#!/bin/bash
#SBATCH --job-name=auto_requeue
#SBATCH --partition=scavenge
#SBATCH --time=24:00:00
#SBATCH --signal=B:10@30
#SBATCH --requeue

trap "echo TIMEOUT; scontrol requeue ${SLURM_JOBID}" 10

module load GROMACS
gmx mdrun -deffnm big &
wait
