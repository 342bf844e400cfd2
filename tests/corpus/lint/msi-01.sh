#!/bin/bash -l
#SBATCH --time=0:30:00
#SBATCH --ntasks=8
#SBATCH --mem=10g
#SBATCH --tmp=10g
#SBATCH --mail-type=ALL
#SBATCH -p msismall

cd ~/program_directory
module load parallel
# one short command for each file; made anew at each start
parallel -j 8 'bzip2 -dkf {} && ./count {.} > {.}.txt' ::: data/*.bz2
