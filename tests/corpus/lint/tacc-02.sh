#!/bin/bash
#SBATCH -J water-box          # Job name
#SBATCH -o water-box.o%j      # Name of stdout output file
#SBATCH -p skx                # Queue (partition) name
#SBATCH -N 8                  # Total # of nodes
#SBATCH -n 384                # Total # of mpi tasks
#SBATCH -t 48:00:00           # Run time (hh:mm:ss)
#SBATCH -d singleton          # One after the other
#SBATCH -A myproject

module load gcc impi gromacs/2023.3
cd $SCRATCH/water

# submitted six times: mdrun stops by itself before the limit, the next job goes on
[ -f prod.gro ] && exit 0
ibrun mdrun_mpi -s prod.tpr -deffnm prod -maxh 47.5 -cpi prod.cpt -append
