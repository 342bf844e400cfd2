#!/bin/ksh
#SBATCH --job-name=echam
#SBATCH --partition=compute
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=128
#SBATCH --time=08:00:00
#SBATCH --account=myproject

cd $WORKDIR
rm -rf output_*
srun -l ./echam6
