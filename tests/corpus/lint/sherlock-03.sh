#!/bin/bash
#SBATCH --job-name=owners
#SBATCH --partition=normal,owners
#SBATCH --time=24:00:00
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --output=owners.%j.out

ml load matlab
matlab -batch "inversion"
