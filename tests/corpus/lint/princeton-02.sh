#!/bin/bash
#SBATCH --job-name=array-job     # create a short name for your job
#SBATCH --output=slurm-%A.%a.out # stdout file
#SBATCH --error=slurm-%A.%a.err  # stderr file
#SBATCH --nodes=1                # node count
#SBATCH --ntasks=1               # total number of tasks across all nodes
#SBATCH --cpus-per-task=1        # cpu-cores per task
#SBATCH --mem-per-cpu=4G         # memory per cpu-core
#SBATCH --time=00:20:00          # total run time limit (HH:MM:SS)
#SBATCH --array=0-99             # job array with index values 0..99

module purge
module load julia/1.10.4

julia simulate.jl --seed $SLURM_ARRAY_TASK_ID --out sim_$SLURM_ARRAY_TASK_ID.csv
