#!/bin/bash
#SBATCH --job-name=bad_list
#SBATCH --partition=normal, owners
#SBATCH --time=12:00:00
#SBATCH --mem=16G

ml R/4.2.0
Rscript bootstrap.R
