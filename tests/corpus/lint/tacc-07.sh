#!/bin/bash
#SBATCH -J bayes
#SBATCH -o bayes.o%j
#SBATCH -p vm-small
#SBATCH -N 1
#SBATCH -n 1
#SBATCH -t 48
#SBATCH -A myproject

# two days should be enough for all chains
module load Rstats
Rscript chains.R --iter 500000
