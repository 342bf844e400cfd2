#!/bin/bash
#SBATCH --job-name=dsq-joblist
#SBATCH --array=0-99
#SBATCH --output=dsq-joblist-%A_%2a-%N.out
#SBATCH --partition=day
#SBATCH --mem-per-cpu=4g
#SBATCH --time=00:20:00
#SBATCH --mail-type=ALL

# line n+1 of the list is task n; each line writes a file of its own
module load miniconda
conda activate rna
eval "$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" joblist.txt)"
