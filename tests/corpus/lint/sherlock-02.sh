#!/bin/bash
#SBATCH --job-name=recurring
#SBATCH --time=2-00:00:00
#SBATCH -p owners
#SBATCH -c 4
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:SIGUSR1@90

ml python/3.9.0
_requeue() {
    echo "$(date): job $SLURM_JOBID received SIGUSR1, saving"
    kill -USR1 "$pid"
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
    [ "${SLURM_RESTART_COUNT:-0}" -lt 50 ] && scontrol requeue "$SLURM_JOBID"
    exit 0
}
trap _requeue SIGUSR1

python3 sampler.py --chain chain.h5 --continue &
pid=$!
wait $pid
