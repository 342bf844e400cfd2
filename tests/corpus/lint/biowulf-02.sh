#!/bin/bash
#SBATCH --job-name=deepvariant
#SBATCH --mem=72g
#SBATCH --cpus-per-task=36
#SBATCH --gres=lscratch:400

# a whole genome: about twenty hours
module load deepvariant/1.6.0
run_deepvariant --model_type=WGS --ref=GRCh38.fa --reads=s1.bam \
    --output_vcf=/lscratch/$SLURM_JOB_ID/s1.vcf.gz --num_shards=36
cp /lscratch/$SLURM_JOB_ID/s1.vcf.gz /data/$USER/
