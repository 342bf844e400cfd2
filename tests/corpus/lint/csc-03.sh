#!/bin/bash
#SBATCH --job-name=local-disk
#SBATCH --account=project_name
#SBATCH --partition=small
#SBATCH --time=2-00:00:00
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=40
#SBATCH --mem=300G
#SBATCH --gres=nvme:900

cp -r /scratch/project_name/reads $LOCAL_SCRATCH/
cd $LOCAL_SCRATCH
module load biokit
spades.py -t 40 -1 reads/R1.fq.gz -2 reads/R2.fq.gz -o asm
tar czf /scratch/project_name/asm.tar.gz asm
