#!/bin/bash
#SBATCH --job-name=requeue_always
#SBATCH --time=8:00:00
#SBATCH --partition=quick,norm
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120

module load R/4.3
term() {
    kill -TERM "$r"
    wait "$r"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap term TERM
# saves and quits on TERM, goes on from gibbs.rds
Rscript gibbs.R gibbs.rds &
r=$!
wait "$r"
