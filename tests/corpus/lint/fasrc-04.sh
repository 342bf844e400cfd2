#!/bin/bash
#SBATCH -c 1                 # Number of cores (-c)
#SBATCH -p shared            # Partition to submit to
#SBATCH --mem=8000           # Memory pool for all cores
#SBATCH -o rjob_%j.out

module load R/4.3.3-fasrc01
# about six hours on the full panel
R CMD BATCH --no-save --no-restore panel.R panel.Rout
