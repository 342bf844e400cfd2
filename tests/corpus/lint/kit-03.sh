#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=40
#SBATCH --time=48:00:00
#SBATCH --mem=80gb
#SBATCH --partition=multiple
#SBATCH --job-name=star
#SBATCH --signal=B:USR1@600

module load cae/starccm+/2022.1
stopper() { touch ABORT; wait $pid; }
trap stopper USR1

# STAR-CCM+ finds ABORT after the iteration, saves the .sim file and stops
starccm+ -batch run.java -np $SLURM_NTASKS -rsh ssh car.sim &
pid=$!
wait $pid
rm -f ABORT
