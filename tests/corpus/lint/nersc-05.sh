#!/bin/bash
#SBATCH -A myproject
#SBATCH -C cpu
#SBATCH -q regular
#SBATCH -N 1
#SBATCH -t 36:00:00
#SBATCH --signal=B:USR1@60
#SBATCH --requeue

requeue_me() {
    date
    scontrol requeue ${SLURM_JOB_ID}
}
trap 'requeue_me' USR1

module load python
conda activate fluid
python solver.py --config channel.yaml --restart-from-latest
