#!/bin/bash
#SBATCH -J quick_test              # Job name
#SBATCH -p test                    # Partition
#SBATCH -n 1                       # Number of cores
#SBATCH -t 00:10:00                # Time (D-HH:MM:SS)
#SBATCH --mem=2g                   # Memory
#SBATCH -o quick_test_%j.out       # Both stdout and stderr

module load python/3.10.13-fasrc01
python -c 'import numpy; print(numpy.linalg.norm(numpy.ones(1000)))'
