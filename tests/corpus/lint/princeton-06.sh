#!/bin/bash
#SBATCH --job-name=matlab        # create a short name for your job
#SBATCH --nodes=1                # node count
#SBATCH --ntasks=1               # total number of tasks across all nodes
#SBATCH --cpus-per-task=4        # cpu-cores per task
#SBATCH --mem-per-cpu=4G         # memory per cpu-core
#SBATCH --array=1-40             # job array
#SBATCH --output=matlab.out      # stdout file
#SBATCH --time=23:00:00          # total run time limit (HH:MM:SS)

module purge
module load matlab/R2024a

matlab -batch "run_case($SLURM_ARRAY_TASK_ID)"
