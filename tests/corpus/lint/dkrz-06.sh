#!/bin/zsh
#SBATCH --job-name=analysis
#SBATCH --partition=interactive
#SBATCH --ntasks=1
#SBATCH --time=00:20:00
#SBATCH --account=myproject
#SBATCH --output=analysis.%j.log

module load python3
for var in tas pr psl; do
    python trend.py --variable $var --out trend_$var.png
done
