#!/bin/bash -l
#SBATCH --job-name=sweep
#SBATCH --partition=small
#SBATCH --time=12:00:00
#SBATCH --ntasks=4
#SBATCH --mem-per-cpu=2G
#SBATCH --account=project_name

for b in 0.1 0.2 0.3 0.4; do
    srun --ntasks=1 --exact ./ising --beta $b --state state.bin &
done
wait
