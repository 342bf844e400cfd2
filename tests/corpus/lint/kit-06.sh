#!/bin/bash
#SBATCH --job-name=chain_link
#SBATCH --partition=single
#SBATCH --ntasks=1
#SBATCH --time=24:00:00
#SBATCH --mem=8gb
#SBATCH --output=job.out
#SBATCH --signal=USR1@120

# one link of a chain: goes on from state.npz, and saves it on USR1
python walk.py --state state.npz
