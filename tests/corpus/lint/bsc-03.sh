#!/bin/bash
#SBATCH --job-name=acc_train
#SBATCH -D .
#SBATCH --output=acc_%j.out
#SBATCH --nodes=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=80
#SBATCH --time=24:00:00
#SBATCH --qos=acc_bscls
#SBATCH --account=group
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

module load anaconda
source activate train
if holdfast run -- python train.py --config acc.yaml; then
    python export.py
else
    echo "stopped with $?"
fi
