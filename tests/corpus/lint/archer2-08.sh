#!/bin/bash
#SBATCH --job-name=vasp
#SBATCH --nodes=4
#SBATCH --tasks-per-node=128
#SBATCH --time=48:00:00
#SBATCH --account=budget-code
#SBATCH --partition=standard
#SBATCH --qos=long
#SBATCH --signal=B:USR1@900

module load vasp/6
export OMP_NUM_THREADS=1
trap 'echo "LABORT = .TRUE." > STOPCAR' SIGUSR1

srun --distribution=block:block --hint=nomultithread vasp_std
