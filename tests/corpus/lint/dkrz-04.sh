#!/bin/bash
#SBATCH --job-name=preproc
#SBATCH --partition=shared
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=60G
#SBATCH --account=myproject
#SBATCH --output=preproc.%j.log
echo "begin $(date)"
#SBATCH --time=7-00:00:00
#SBATCH --signal=B:USR1@300
export OMP_NUM_THREADS=16
module load python3
python regrid_all.py --years 1950-2100 --continue
