#!/bin/bash
# FILENAME:  gpu.sub
#SBATCH -A mylab-gpu
#SBATCH -p ai
#SBATCH -q preemptible
#SBATCH --nodes=1 --gpus-per-node=1 --ntasks=1
#SBATCH --time=1-00:00:00
#SBATCH --job-name gpu
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@180

module load conda
conda activate pt

run_it() {
    holdfast run --retries 1 -- python "$@"
}
run_it train.py --lr 3e-4
python summarise.py
