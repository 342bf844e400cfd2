#!/bin/bash
#SBATCH -J requeue_test
#SBATCH -o ./%x.%j.out
#SBATCH -D ./
#SBATCH --time=02:55:00
#SBATCH --partition=general
#SBATCH --account=projectID
#SBATCH --nodes=4
#SBATCH --requeue
#SBATCH --no-requeue

module load slurm_setup
# stops by itself after 150 minutes, goes on from out/chk where it exists
mpiexec -n 192 ./flash4 -chk out/chk
