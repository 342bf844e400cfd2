#!/bin/bash -l
#SBATCH --job-name=array
#SBATCH --array=1-16
#SBATCH --output=array_%A_%a.out
#SBATCH --error=array_%A_%a.err
#SBATCH --partition=small
#SBATCH --time=01:00:00
#SBATCH --ntasks=1
#SBATCH --mem=4G
#SBATCH --account=project_name

srun ./myapp --input input_data_${SLURM_ARRAY_TASK_ID}.inp \
             --output output_data_${SLURM_ARRAY_TASK_ID}.out
