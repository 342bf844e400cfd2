#!/bin/bash -e
#SBATCH --job-name=no_time
#SBATCH --mem=8G
#SBATCH --cpus-per-task=8
#SBATCH --account=myproject

module load BRAKER/3.0.8
# a genome takes a night
srun braker.pl --genome=genome.fa --prot_seq=proteins.fa --threads=8
