#!/bin/bash
#SBATCH -p mit_normal
#SBATCH -t 12:00:00
#SBATCH -n 64
#SBATCH -o /home/$USER/logs/mitgcm-%j.out

module load openmpi
mpirun ./mitgcmuv > stdout.log
