#!/bin/bash
#SBATCH -p rome
#SBATCH -n 32
#SBATCH -t 24:00:00
#SBATCH -J prod
#SBATCH --dependency=singleton
#SBATCH --requeue
#SBATCH --signal=USR1@120

module load 2023 OpenMPI/4.1.5-GCC-12.3.0
# kmc saves on USR1 and ends with 0
until srun ./kmc --state kmc.h5 --restore; do
    echo "kmc ended with $?, once more"
done
