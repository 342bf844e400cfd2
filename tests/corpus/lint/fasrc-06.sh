#!/bin/bash
#SBATCH -J train
#SBATCH -p gpu,gpu_requeue
#SBATCH -c 8
#SBATCH --gres=gpu:1
#SBATCH --mem=32g
#SBATCH -t 0-23:00
#SBATCH --requeue
#SBATCH -o train_%j.out
#SBATCH --signal=B:TERM@300

module load cuda/12.4.1-fasrc01 python/3.10.13-fasrc01
mamba activate vision

save_and_requeue() {
    kill -TERM "$child"
    wait "$child"
    scontrol requeue "$SLURM_JOB_ID"
}
trap save_and_requeue TERM

python train.py --resume &
child=$!
wait "$child"
