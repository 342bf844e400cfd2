#!/bin/bash -l
#SBATCH --job-name=longrun
#SBATCH --partition=standard
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=128
#SBATCH --time=12:00          # twelve hours
#SBATCH --account=project_name

srun ./pencil
