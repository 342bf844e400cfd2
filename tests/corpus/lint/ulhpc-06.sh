#!/bin/bash -l
#SBATCH -J restart-me
#SBATCH -p batch
#SBATCH -n 1
#SBATCH --time=0-06:00:00

module load math/MATLAB
sbatch --dependency=afterany:$SLURM_JOB_ID "$SLURM_SUBMIT_DIR/restart.sh"
# walker.m saves walker.mat every ten minutes and goes on from it
matlab -batch "walker('walker.mat')"
