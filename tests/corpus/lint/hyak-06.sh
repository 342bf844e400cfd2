#!/bin/bash
#SBATCH --job-name=oops
#SBATCH --partition=compute
#SBATCH --account=mylab
#SBATCH --nodes=1
#SBATCH --ntasks=40
#SBATCH --mem=100G
#SBATCH --time=3

# three days for 40 chains
module load julia
julia -p 40 chains.jl > chains.log || scontrol requeue $SLURM_JOB_ID
