#!/bin/bash -e
#SBATCH --job-name=trap_exec
#SBATCH --time=3-00:00:00
#SBATCH --mem=4G
#SBATCH --account=myproject
#SBATCH --signal=B:USR1@300

module load R/4.3.1-gimkl-2022a
trap 'cp $TMPDIR/*.rds results/' USR1
exec Rscript bayes.R --tmp $TMPDIR
