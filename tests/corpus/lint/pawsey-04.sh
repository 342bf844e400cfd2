#!/bin/bash --login
#SBATCH --account=project
#SBATCH --partition=long
#SBATCH --ntasks=1
#SBATCH --time=96:00:00
#SBATCH --output=log/%x.%j.out
#SBATCH --error=log/%x.%j.err

[ -d log ] || mkdir log
module load singularity/4.1.0-slurm
singularity exec trinity.sif Trinity --seqType fq --left r1.fq --right r2.fq --output /tmp/trinity_out
cp /tmp/trinity_out/Trinity.fasta .
