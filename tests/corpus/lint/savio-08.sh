#!/bin/bash
#SBATCH --job-name=timeout
#SBATCH --account=fc_projectname
#SBATCH --partition=savio3
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

module load python/3.11.6
timeout 24h python solve.py --resume latest
if [[ $? == 124 ]]; then
    scontrol requeue $SLURM_JOB_ID
fi
