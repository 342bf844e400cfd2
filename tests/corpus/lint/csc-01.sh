#!/bin/bash -l
#SBATCH --job-name=r_serial
#SBATCH --account=project_name
#SBATCH --output=output_%j.txt
#SBATCH --error=errors_%j.txt
#SBATCH --partition=test
#SBATCH --time=00:05:00
#SBATCH --ntasks=1
#SBATCH --nodes=1
#SBATCH --mem-per-cpu=1000

module load r-env
export TMPDIR=/scratch/project_name/tmp
export R_LIBS_USER=/projappl/project_name/rpackages

srun apptainer_wrapper exec Rscript --no-save myscript.R
