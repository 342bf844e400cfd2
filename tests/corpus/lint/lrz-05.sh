#!/bin/bash
#SBATCH -J gmx_steps
#SBATCH -o ./%x.%j.out
#SBATCH -D ./
#SBATCH --clusters=cm4
#SBATCH --partition=cm4_std
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=112
#SBATCH --time=24:00:00
#SBATCH --export=NONE
#SBATCH --get-user-env

module load slurm_setup
module load gromacs/2023.3-gcc12-impi
gmx grompp -f em.mdp -c box.gro -p topol.top -o em.tpr
mpiexec -n $SLURM_NTASKS gmx_mpi mdrun -deffnm em
gmx grompp -f md.mdp -c em.gro -p topol.top -o md.tpr
mpiexec -n $SLURM_NTASKS gmx_mpi mdrun -deffnm md
echo 0 | gmx trjconv -f md.xtc -s md.tpr -o md_whole.xtc -pbc whole
