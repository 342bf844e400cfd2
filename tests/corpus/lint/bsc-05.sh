#!/bin/bash
#SBATCH --job-name=nmmb
#SBATCH -D .
#SBATCH --output=nmmb_%j.out
#SBATCH --ntasks=112
#SBATCH --time=10:00:00
#SBATCH --qos=gp_bsces
#SBATCH --account=group
#SBATCH --signal=B:USR1@60

cleanup() { rm -f $TMPDIR/nmmb.lock; }
trap cleanup EXIT
# stops by itself after nine and a half hours; goes on from the restart file
srun ./nmmb.x --max-seconds 34200 --restart-file nmmb_rst
