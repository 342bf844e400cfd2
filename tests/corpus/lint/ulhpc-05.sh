#!/bin/bash -l
#SBATCH -J gpu-train
#SBATCH -p gpu
#SBATCH -G 2
#SBATCH -c 14
#SBATCH --time=2-00:00:00
#SBATCH --signal=B:TERM@60

module load ai/PyTorch
on_term() {
    echo "Caught SIGTERM"
    kill -TERM $pid
}
trap on_term TERM

python main.py --resume $SCRATCH/last.ckpt &
pid=$!
wait $pid
echo "training done"
