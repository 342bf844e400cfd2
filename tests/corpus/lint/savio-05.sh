#!/bin/bash
#SBATCH --job-name=mcmc
#SBATCH --account=fc_projectname
#SBATCH --partition=savio2_htc
#SBATCH --array=1-24
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@600
#SBATCH --output=mcmc_%A_%a.out

chain=chains/$SLURM_ARRAY_TASK_ID
again() {
    kill -USR1 $pid
    wait $pid
    scontrol requeue $SLURM_ARRAY_JOB_ID
}
trap again USR1

module load julia/1.10.2
julia --project mcmc.jl --dir $chain --resume &
pid=$!
wait $pid
