#!/bin/sh
# FILENAME:  lammps.sub
 #SBATCH -A mylab
#SBATCH --nodes=4 --ntasks-per-node=32
#SBATCH --time=2-00:00:00
#SBATCH --job-name lmp

module load lammps
srun lmp -in crack.in -log crack.log
srun -n 1 python post.py crack.lammpstrj
