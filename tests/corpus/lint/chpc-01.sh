#!/bin/csh
#SBATCH --time=00:20:00
#SBATCH --nodes=1
#SBATCH --ntasks=8
#SBATCH --account=mygroup-guest
#SBATCH --partition=granite-guest
#SBATCH -o slurmjob-%j.out-%N

module load gaussian16
setenv GAUSS_SCRDIR /scratch/local/$SLURM_JOB_ID
g16 < water.com > water.log
