#!/bin/bash
#----------------------------------------------------
# MPI job on the development queue
#----------------------------------------------------
#SBATCH -J mpi-test           # Job name
#SBATCH -o mpi-test.o%j       # Name of stdout output file
#SBATCH -e mpi-test.e%j       # Name of stderr error file
#SBATCH -p development        # Queue (partition) name
#SBATCH -N 2                  # Total # of nodes
#SBATCH -n 96                 # Total # of mpi tasks
#SBATCH -t 00:15:00           # Run time (hh:mm:ss)
#SBATCH -A myproject          # Allocation name

module list
pwd
date

ibrun ./heat2d.x -nx 1024
