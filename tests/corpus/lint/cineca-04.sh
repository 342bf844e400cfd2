#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:1
#SBATCH --time=24:00:00
#SBATCH --account=account_name
#SBATCH --partition=boost_usr_prod
#SBATCH --requeue
#SBATCH --signal=B:USR1@90

# sent by Slurm 90 s before the end
handler() { echo "[$(date)] USR1"; scontrol requeue "$SLURM_JOB_ID"; }
trap handler USR1

module load profile/deeplrn cineca-ai/4.3.0
python train.py --resume --save-on-signal &
wait $!
