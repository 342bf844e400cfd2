#!/bin/bash -l
#SBATCH --time=24:00:00
#SBATCH --ntasks=1
#SBATCH --mem=64g
#SBATCH -p msibigmem
#SBATCH --signal=B:USR1@600

trap 'touch $HOME/flags/stop' USR1
module load R/4.4.0-openblas-rocky8
# glmm.R looks for the flag, saves and quits
exec Rscript glmm.R --flag $HOME/flags/stop
