#!/bin/bash
#SBATCH -J scratch_restart
#SBATCH -A PROJECT-CPU
#SBATCH -p icelake
#SBATCH --nodes=1
#SBATCH --ntasks=76
#SBATCH --time=36:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

module load amber/20
# heat, then density, then production
mpirun pmemd.MPI -O -i heat.in -p c.prmtop -c c.inpcrd -r heat.rst7
mpirun pmemd.MPI -O -i dens.in -p c.prmtop -c heat.rst7 -r dens.rst7
mpirun pmemd.MPI -O -i prod.in -p c.prmtop -c dens.rst7 -r prod.rst7 -x prod.nc
