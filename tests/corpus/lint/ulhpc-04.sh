#!/bin/bash -l
#SBATCH -J dmtcp
#SBATCH --qos besteffort
#SBATCH -p batch
#SBATCH -n 1
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

module load tools/DMTCP
export DMTCP_CHECKPOINT_DIR=$SCRATCH/dmtcp
# an image every quarter of an hour
dmtcp_launch -i 900 ./enumerate all.txt
