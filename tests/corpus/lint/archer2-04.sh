#!/bin/bash
#SBATCH --job-name=gmx_npt
#SBATCH --nodes=4
#SBATCH --tasks-per-node=128
#SBATCH --cpus-per-task=1
#SBATCH --time=24:00:00
#SBATCH --account=budget-code
#SBATCH --partition=standard
#SBATCH --qos=standard

module load gromacs
export OMP_NUM_THREADS=1
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# two days of computing: submitted three times, with --dependency=afterany
# mdrun stops after 0.99 of -maxh, a quarter of an hour before the limit
srun --hint=nomultithread gmx_mpi mdrun -s npt.tpr -maxh 24 -cpi state.cpt
