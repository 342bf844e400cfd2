#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --time=00:02:00
#SBATCH --account=p_number_crunch
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

module load release/24.04 GCC/12.3.0 Python/3.11.3
exec holdfast run -- python lattice.py --beta 5.7
