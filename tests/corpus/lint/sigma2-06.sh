#!/bin/bash
#SBATCH --account=nnXXXXk
#SBATCH --job-name=ten-days
#SBATCH --time=10-00:00:00
#SBATCH --ntasks=1
#SBATCH --mem-per-cpu=4G

module load Python/3.11.3-GCCcore-12.3.0
nohup python search.py > search.log &
disown
