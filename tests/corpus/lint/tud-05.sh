#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=52
#SBATCH --time=24:00:00
#SBATCH --account=p_number_crunch
#SBATCH --partition=barnard
#SBATCH --signal=B:USR2@600
#SBATCH --requeue
#SBATCH --open-mode=append

# hand the notice on to all ranks: srun forwards USR2; palm saves and ends with 42
forward() {
    kill -USR2 "$srun_pid"
}
trap forward USR2
srun ./palm --restart-if-present &
srun_pid=$!
wait "$srun_pid"; code=$?
[ "$code" -gt 128 ] && { wait "$srun_pid"; code=$?; }
if [ "$code" -eq 42 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 30 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
