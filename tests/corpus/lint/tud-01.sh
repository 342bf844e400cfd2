#!/bin/bash
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=1700
#SBATCH --time=00:30:00
#SBATCH --account=p_number_crunch
#SBATCH --output=%x-%j.out
#SBATCH --array=0-11

module purge
module load release/24.04 GCC/12.3.0 R/4.3.2
Rscript month.R "$SLURM_ARRAY_TASK_ID" > "month_$SLURM_ARRAY_TASK_ID.txt"
