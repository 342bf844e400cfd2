#!/bin/bash
#SBATCH --account=nnXXXXk
#SBATCH --job-name=preempt
#SBATCH --partition=optimist
#SBATCH --time=2-00:00:00
#SBATCH --nodes=4
#SBATCH --signal=USR1@120

module load NEMO
# nemo.exe writes its restart on USR1 and goes on from it
srun ./nemo.exe
