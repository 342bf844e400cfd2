#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=32
#SBATCH --walltime=24:00:00
#SBATCH --account=account_name
#SBATCH --partition=boost_usr_prod

module load julia/1.10
julia -t 32 lattice.jl > lattice.log
