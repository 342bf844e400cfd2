#!/bin/bash
#SBATCH --partition=short
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=24:00:00
#SBATCH --job-name=alphafold
#SBATCH --output=alphafold_%j.out

module load singularity/3.10.3
export DATA=/shared/container_repository/AlphaFold
singularity run --nv -B "$DATA":/data,"$PWD":/work --pwd /work alphafold.sif \
    --fasta_paths=/work/query.fasta --output_dir=/work/out
