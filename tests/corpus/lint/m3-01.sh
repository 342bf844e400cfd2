#!/bin/bash
#SBATCH --job-name=sample
#SBATCH --time=00:25:00
#SBATCH --ntasks=1
#SBATCH --mem=4096
#SBATCH --array=1-60
#SBATCH --output=sample_%A_%a.out

module load fsl/6.0.7
bet "in/sub_$SLURM_ARRAY_TASK_ID.nii.gz" "brain_$SLURM_ARRAY_TASK_ID.nii.gz" -R
