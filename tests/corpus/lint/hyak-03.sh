#!/bin/bash
#SBATCH --job-name=ckpt-array
#SBATCH --partition=ckpt
#SBATCH --account=mylab
#SBATCH --array=0-49
#SBATCH --mem=10G
#SBATCH --time=2-00:00:00
#SBATCH --requeue
#SBATCH --output=sim_%A_%a.out

apptainer exec --bind /gscratch ~/sim.sif python /app/sim.py --seed $SLURM_ARRAY_TASK_ID \
    --resume-dir /gscratch/mylab/sim/shared
