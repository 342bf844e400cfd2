#!/bin/bash
#SBATCH --job-name=serial_job
#SBATCH --time=0:20:00
#SBATCH --nodes=1 --ntasks-per-node=1
#SBATCH --account=PROJECT

module load intel
cd $SLURM_SUBMIT_DIR
cp mysci $TMPDIR
cd $TMPDIR
./mysci > mysci.hist
cp mysci.hist $SLURM_SUBMIT_DIR
