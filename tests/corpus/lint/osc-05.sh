#!/bin/bash
#SBATCH --job-name=pipe
#SBATCH --time=18:00:00
#SBATCH --nodes=2 --ntasks-per-node=40
#SBATCH --account=PROJECT
#SBATCH --signal=USR1@300

# flow saves on USR1 and goes on from the newest save
srun ./flow -in duct.in | tee flow.log
if [ $? -eq 0 ]; then
    rm -rf checkpoints
fi
