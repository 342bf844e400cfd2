#!/bin/bash
#SBATCH --job-name=ensemble
#SBATCH --array=1-16
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=18:00:00
#SBATCH --account=account_name
#SBATCH --partition=dcgp_usr_prod
#SBATCH --output=ens_%A_%a.out
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

module load python/3.11.7
exec holdfast run --run "$WORK/ensemble/run" -- python member.py --seed "$SLURM_ARRAY_TASK_ID"
