#!/bin/bash
#SBATCH --account=def-someprof
#SBATCH --time=00:45:00
#SBATCH --array=1-30
#SBATCH --mem-per-cpu=2G
module load StdEnv/2023 gcc/12.3 r/4.4.0
export R_LIBS=~/.local/R/$EBVERSIONR/

Rscript case.R "$SLURM_ARRAY_TASK_ID" "out/case_$SLURM_ARRAY_TASK_ID.rds"
