#!/bin/bash -l
#SBATCH --job-name=cp2k
#SBATCH --time=24:00:00
#SBATCH --time-min=48:00:00
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=16
#SBATCH --account=project

srun cp2k.psmp -i h2o.inp -o h2o.out
