#!/bin/bash
#SBATCH --job-name=array_job
#SBATCH --output=array_job_out_%j.txt
#SBATCH --error=array_job_err_%j.txt
#SBATCH --account=project_name
#SBATCH --partition=small
#SBATCH --time=00:50:00
#SBATCH --ntasks=1
#SBATCH --mem-per-cpu=4000
#SBATCH --array=1-50

name=$(sed -n ${SLURM_ARRAY_TASK_ID}p namelist)
my_prog ${name} result.out
