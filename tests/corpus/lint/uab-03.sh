#!/bin/bash
#SBATCH --job-name=segment
#SBATCH --ntasks=1
#SBATCH --partition=pascalnodes
#SBATCH --gres=gpu:1
#SBATCH --time=12:00:00
#SBATCH --mem=32G
#SBATCH --signal=B:USR2@300
#SBATCH --requeue
#SBATCH --open-mode=append

module load Miniforge3
conda activate seg
trap 'kill -USR1 $pid; wait $pid; scontrol requeue $SLURM_JOB_ID; exit' USR1
python unet.py --resume &
pid=$!
wait $pid
