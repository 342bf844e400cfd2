#!/bin/bash
#SBATCH --job-name=index
#SBATCH --time=00:30:00
#SBATCH --mem=20g
#SBATCH --cpus-per-task=8
#SBATCH --gres=lscratch:50

module load samtools
samtools sort -@ 8 -T /lscratch/$SLURM_JOB_ID/tmp -o s1.sorted.bam s1.bam && samtools index s1.sorted.bam
