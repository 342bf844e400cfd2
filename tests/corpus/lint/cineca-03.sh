#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=32
#SBATCH --time=24:00:00
#SBATCH --account=account_name
#SBATCH --partition=dcgp_usr_prod
#SBATCH --job-name=qe_md

module load profile/chem-phys quantum-espresso/7.2--openmpi--4.1.6--gcc--12.2.0
rm -rf ./out && mkdir ./out
mpirun -np 64 pw.x -npool 4 -in md.in > md.out
