#!/bin/bash -l
#SBATCH --job-name=cosmo
#SBATCH --time=24:00:00
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=12
#SBATCH --account=project
#SBATCH --signal=B:TERM@300

stop() {
    echo "asking cosmo to stop"
    kill -TERM $SRUN_PID
    wait $SRUN_PID
}
trap stop TERM
srun ./cosmo --restart latest &
SRUN_PID=$!
wait $SRUN_PID
