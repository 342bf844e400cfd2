#!/bin/bash
#SBATCH --job-name=matlab
#SBATCH --account=project_name
#SBATCH --partition=small
#SBATCH --time=3-00:00:00
#SBATCH --mem=16G
#SBATCH --cpus-per-task=8

module load matlab
matlab -nodisplay -nosplash -r "run('optimise.m'); exit" | tee matlab.log
