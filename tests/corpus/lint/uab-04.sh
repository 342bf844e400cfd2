#!/bin/bash
#SBATCH --job-name=fmriprep
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --partition=medium
#SBATCH --time=50:00:00
#SBATCH --mem=64G
#SBATCH --array=1-80%20
#SBATCH --output=fmriprep_%A_%a.out

# the working directory is kept: fmriprep passes over what is finished in it
sub=$(sed -n "${SLURM_ARRAY_TASK_ID}p" subjects.txt)
out=$USER_SCRATCH/work/$sub
exec apptainer run --cleanenv -B "$USER_SCRATCH" fmriprep.sif bids out participant --participant-label "$sub" -w "$out"
