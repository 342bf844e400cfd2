#!/bin/bash
#SBATCH -J gadget
#SBATCH -o ./%x.%j.out
#SBATCH -e ./%x.%j.err
#SBATCH -D ./
#SBATCH --time=48:00:00
#SBATCH --no-requeue
#SBATCH --export=NONE
#SBATCH --get-user-env
#SBATCH --account=projectID
#SBATCH --partition=general
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=48

module load slurm_setup
# param.txt: TimeLimitCPU 172000, restart files every two hours; flag 1 goes on from them
if [ -e restart.0 ]; then flag=1; else flag=0; fi
mpiexec -n $SLURM_NTASKS ./Gadget3 param.txt $flag
