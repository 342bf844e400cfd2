#!/bin/bash
#SBATCH --job-name="bundled"
#SBATCH --output="bundled.%j.out"
#SBATCH --partition=compute
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=128
#SBATCH --account=proj
#SBATCH -t 48:00:00
#SBATCH --signal=B:USR1@120

SCR=/scratch/$USER/job_$SLURM_JOB_ID
module load cpu/0.17.3b gcc/10.2.0 openmpi/4.1.3 namd
cp -r $SLURM_SUBMIT_DIR/* $SCR && cd $SCR
copy_back() { cp -r $SCR/*.restart.* $SLURM_SUBMIT_DIR/; }
trap copy_back USR1
mpirun -np 128 namd2 apoa1.namd > apoa1.log
copy_back
