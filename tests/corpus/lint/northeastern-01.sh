#!/bin/bash
#SBATCH --partition=short
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=00:10:00
#SBATCH --job-name=hostname_test
#SBATCH --output=%x_%j.out
#SBATCH --error=%x_%j.err

hostname
python3 --version
