#!/bin/bash --login
#SBATCH --account=project
#SBATCH --partition=work
#SBATCH --ntasks=1
#SBATCH --mem=20 GB
#SBATCH --time=12:00:00

module load nextflow/24.04.3
nextflow run nf-core/rnaseq -profile singularity,pawsey_setonix -resume
