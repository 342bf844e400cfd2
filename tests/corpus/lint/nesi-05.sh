#!/bin/bash -e
#SBATCH --job-name=beast
#SBATCH --time=5-00:00:00
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --account=myproject
#SBATCH --requeue
#SBATCH --open-mode=append

module load BEAST/2.7.6
mkdir -p run && cd run
# beast writes its state every 10,000 samples; -resume goes on from it
if [ -f dating.xml.state ]; then how=-resume; else how=-overwrite; fi
srun beast $how -threads 4 -statefile dating.xml.state ../dating.xml
