#!/bin/bash
#SBATCH -p rome
#SBATCH -n 1
#SBATCH -t 5-00:00:00
#SBATCH -J watchdog

module load 2023 R/4.3.2-gfbf-2023a
# stop in good time, so that the results can be copied
timeout --signal=KILL 4.9d Rscript bootstrap.R --out $TMPDIR/boot.rds
cp $TMPDIR/boot.rds $HOME/
