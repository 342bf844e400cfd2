#!/bin/bash
#SBATCH --job-name="dup"
#SBATCH --output="dup.%j.out"
#SBATCH --partition=shared
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --mem=16G
#SBATCH --mem-per-cpu=4G
#SBATCH --account=proj
#SBATCH -t 00:30:00

module load cpu/0.17.3b python
python3 align.py
