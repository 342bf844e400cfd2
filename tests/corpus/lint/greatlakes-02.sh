#!/bin/bash
#SBATCH --job-name=matlab_trap
#SBATCH --nodes=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16g
#SBATCH --time=14-00:00:00
#SBATCH --account=test
#SBATCH --partition=standard
#SBATCH --signal=B:USR1@600

module load matlab/R2023a
# solve_pde looks for stop.flag after each time step, saves and quits
trap 'touch stop.flag' USR1
matlab -nodisplay -r "solve_pde('resume'); exit" > solve.log 2>&1
