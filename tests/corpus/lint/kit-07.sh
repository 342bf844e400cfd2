#!/usr/bin/env -S bash -l
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --time=00:30:00
#SBATCH --mem=16gb
#SBATCH --partition=dev_single
#SBATCH --array=1-8
#SBATCH --job-name=fastqc
#SBATCH --output=fastqc-%A-%a.out

module load bio/fastqc
mkdir -p qc
fastqc --threads 8 --outdir qc sample_${SLURM_ARRAY_TASK_ID}.fastq.gz
