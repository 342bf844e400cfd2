#!/bin/bash -l
#SBATCH --job-name=julia
#SBATCH --time=12:00:00
#SBATCH --nodes=1
#SBATCH --account=project
#SBATCH --output=$SCRATCH/logs/julia-%j.out

srun julia --project -t 72 model.jl --checkpoint $SCRATCH/julia/state.jld2
