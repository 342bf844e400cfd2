#!/bin/bash
#! Name of the job:
#SBATCH -J big
#SBATCH -A PROJECT-GPU
#SBATCH -p ampere
#SBATCH --nodes=1
#SBATCH --gres=gpu:4
#! How much wallclock time will be required?
#SBATCH --time=36:00:00
#! Uncomment this to prevent the job from being requeued
##SBATCH --no-requeue

. /etc/profile.d/modules.sh
module load rhel8/default-amp
workdir="$SLURM_SUBMIT_DIR"
application="python -u train.py"
options="--epochs 90 --output-dir out"
CMD="$application $options > out.$SLURM_JOB_ID"
cd $workdir
eval $CMD
