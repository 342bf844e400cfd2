#!/bin/bash
#SBATCH -J namd-long          # Job name
#SBATCH -o namd-long.o%j      # Name of stdout output file
#SBATCH -e namd-long.e%j      # Name of stderr error file
#SBATCH -p normal             # Queue (partition) name
#SBATCH -N 16                 # Total # of nodes
#SBATCH -n 64                 # Total # of mpi tasks
#SBATCH -t 48:00:00           # Run time (hh:mm:ss)
#SBATCH -A myproject

module load namd/3.0
ibrun namd3 +ppn 23 production.namd &> production.log
