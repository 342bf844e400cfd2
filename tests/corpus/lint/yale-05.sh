#!/bin/bash
#SBATCH --partition=day
#SBATCH --time=12:00:00
#SBATCH --cpus-per-task=8
#SBATCH --mem=40G
#SBATCH --array=1-22
#SBATCH --job-name=chr
#SBATCH --output=chr_%a.out

module load MATLAB/2023b
# state.mat holds what is finished, also of an earlier start
matlab -batch "chr=$SLURM_ARRAY_TASK_ID; gwas(chr, 'state.mat')"
