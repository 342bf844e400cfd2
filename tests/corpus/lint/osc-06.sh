#!/bin/bash
#SBATCH --job-name=abaqus
#SBATCH --time=48:00:00
#SBATCH --nodes=1 --ntasks-per-node=40
#SBATCH --account=PROJECT
#SBATCH --output=~/logs/abq_%j.out

module load abaqus/2023
cd $PFSDIR
cp $SLURM_SUBMIT_DIR/knee.inp .
abaqus job=knee cpus=$SLURM_NTASKS interactive
cp knee.odb knee.res $SLURM_SUBMIT_DIR
