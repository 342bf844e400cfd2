#!/bin/bash
#SBATCH --time=72:00:00
#SBATCH --ntasks=1
#SBATCH --account=mygroup
#SBATCH --partition=notchpeak
#SBATCH --signal=USR1@120

module load julia
# julia saves on USR1
julia --project run.jl --resume
