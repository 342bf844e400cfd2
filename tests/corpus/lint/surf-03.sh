#!/bin/bash
#SBATCH -p gpu_h100
#SBATCH --gpus=1
#SBATCH -t 2-00:00:00
#SBATCH -J finetune
#SBATCH -o finetune-%j.out
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

module load 2023 PyTorch/2.1.2-foss-2023a-CUDA-12.1.1
sig_handler() {
    echo "USR1: stopping"
    kill -USR1 "$main"
    wait "$main"
    code=$?
    if [ "$code" -eq 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 10 ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$code"
}
trap 'sig_handler' USR1

# saves on USR1 and ends with 75: stopped in time, not finished
python sft.py --resume_from_checkpoint latest &
main=$!
wait "$main"
