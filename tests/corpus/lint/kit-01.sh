#!/bin/bash
#SBATCH --ntasks=1
#SBATCH --time=10
#SBATCH --mem=1gb
#SBATCH --partition=dev_single
#SBATCH --job-name=simple

module load compiler/gnu/13.3
make -j 4 check
