#!/bin/bash
#SBATCH --job-name=lowprio_array
#SBATCH --account=co_projectname
#SBATCH --partition=savio3
#SBATCH --qos=savio_lowprio
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --array=0-299
#SBATCH --time=00:40:00
#SBATCH --output=tile_%A_%a.log

module load python/3.11.6
python tile.py --index $SLURM_ARRAY_TASK_ID --out tiles/$SLURM_ARRAY_TASK_ID.tif
