#!/bin/bash -l
#SBATCH --time=24:00:00
#SBATCH --ntasks=128
#SBATCH --mem=200g
#SBATCH -p msismall
#SBATCH --signal=USR1@300

module load lammps
srun lmp -in polymer.in -log polymer.log
