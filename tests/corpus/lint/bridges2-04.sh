#!/bin/bash
#SBATCH -N 2
#SBATCH -p RM
#SBATCH -t 48:00:00
#SBATCH --ntasks-per-node=128
#SBATCH --no-requeue
#SBATCH --signal=USR1@300

# flow saves on USR1 and ends with 3
module load openmpi/4.0.5-gcc10.2.0
srun ./flow run.in -resume
if [ $? -eq 3 ]; then
    scontrol requeue $SLURM_JOB_ID
fi
