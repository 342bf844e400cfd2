#!/bin/bash
#SBATCH --job-name=my_job      # Specify job name
#SBATCH --partition=compute    # Specify partition name
#SBATCH --nodes=1              # Specify number of nodes
#SBATCH --mem=0                # Request all memory
#SBATCH --time=00:30:00        # Set a limit on the total run time
#SBATCH --mail-type=FAIL       # Notify user by email in case of job failure
#SBATCH --account=myproject       # Charge resources on this project account
#SBATCH --output=my_job.o%j    # File name for standard output

set -e
ulimit -s 204800
module load cdo
cdo -P 64 yearmean ta.nc ta_year.nc
