#!/bin/bash
#SBATCH --job-name=auto_requeue
#SBATCH --partition=week
#SBATCH --time=7-00:00:00
#SBATCH --signal=B:10@300
#SBATCH --requeue
#SBATCH --open-mode=append

# 10 is USR1; my_code.exe writes state.bin on USR1, ends, and reads it at its next start
on_notice() {
    kill -10 "$code"
    wait "$code"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap on_notice 10

./my_code.exe &
code=$!
wait "$code"
