#!/bin/bash
#SBATCH -p mit_quicktest
#SBATCH -t 00:15:00
#SBATCH -c 4
#SBATCH --mem=8G

module load miniforge
make -C paper figures
