#!/bin/bash
#SBATCH --job-name=CASTEP
#SBATCH --nodes=2
#SBATCH --tasks-per-node=128
#SBATCH --cpus-per-task=1
#SBATCH --time=48:00:00
#SBATCH --account=budget-code
#SBATCH --partition=standard
#SBATCH --qos=long

module load castep/24.1
export OMP_NUM_THREADS=1
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun --distribution=block:block --hint=nomultithread castep.mpi MgO_md
