#!/bin/bash
#SBATCH --ntasks=40
#SBATCH --nodes=1
#SBATCH --time=72:00:00
#SBATCH --mem=90gb
#SBATCH --partition=single
#SBATCH --job-name=turbomole
#SBATCH --output=%x-%j.out

module load chem/turbomole
export PARA_ARCH=SMP
export PARNODES=$SLURM_NTASKS
WS=$(ws_find turbo)
cd "$WS/water" || exit 1
jobex -ri -c 200 > jobex.out
