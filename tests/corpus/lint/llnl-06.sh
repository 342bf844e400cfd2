#!/bin/bash
#SBATCH -N 1
#SBATCH -t 24:00:00
#SBATCH -p pbatch
#SBATCH -A mybank
#SBATCH -J abq

module load abaqus
LOGS=~/logs
abaqus job=crash cpus=36 interactive < /dev/null > $LOGS/crash.log 2>&1
wait
