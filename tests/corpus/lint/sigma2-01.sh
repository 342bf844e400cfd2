#!/bin/bash
#SBATCH --account=nnXXXXk
#SBATCH --job-name=savefile
#SBATCH --time=0-00:30:00
#SBATCH --mem-per-cpu=3G
#SBATCH --ntasks=1

set -o errexit

cp $SUBMITDIR/input.dat $SCRATCH
savefile output.dat
cd $SCRATCH
./preprocess input.dat output.dat
