#!/bin/bash
#SBATCH -J launcher
#SBATCH -N 4
#SBATCH -n 192
#SBATCH -p normal
#SBATCH -o Parametric.%j.out
#SBATCH -e Parametric.%j.err
#SBATCH -t 00:25:00
#SBATCH -A myproject

module load launcher
export LAUNCHER_WORKDIR=$SCRATCH/params
# every line of the file writes its own result and passes over one that is there
export LAUNCHER_JOB_FILE=commands.txt

$LAUNCHER_DIR/paramrun
