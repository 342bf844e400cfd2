#!/bin/tcsh
#SBATCH -p mit_normal
#SBATCH -t 10:00:00
#SBATCH -n 1
#SBATCH --signal=B:USR1@120

trap "scontrol requeue $SLURM_JOB_ID" USR1
module load matlab
matlab -batch "sweep('resume')" &
wait
