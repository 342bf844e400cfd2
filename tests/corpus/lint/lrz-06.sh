#!/bin/bash
#SBATCH -J farm
#SBATCH -o ./%x.%j.out
#SBATCH -D ./
#SBATCH --time=00:30:00
#SBATCH --partition=micro
#SBATCH --account=projectID
#SBATCH --nodes=1
#SBATCH --ntasks=48
#SBATCH --export=NONE
#SBATCH --get-user-env

module load slurm_setup
module load parallel
# 48 at a time; what has a result is not run again
parallel -j 48 '[ -s {.}.out ] || ./analyse {} > {.}.tmp && mv {.}.tmp {.}.out' ::: data/*.dat
