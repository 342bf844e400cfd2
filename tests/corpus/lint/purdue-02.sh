#!/bin/bash
# FILENAME:  fluent.sub

#SBATCH -A mylab
#SBATCH --nodes=2 --ntasks-per-node=64
#SBATCH --time=14-00:00:00
#SBATCH --job-name fluent
#SBATCH -o fluent.o%j -e fluent.e%j

module load ansys/2023R2
unset SLURM_GTIDS
fluent 3ddp -g -t $SLURM_NTASKS -mpi=intel -cnf=nodes.$SLURM_JOB_ID -i wing.jou > wing.log
