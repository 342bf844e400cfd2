#!/bin/bash
#SBATCH -A myproject
#SBATCH -C cpu
#SBATCH -q regular
#SBATCH -N 1
#SBATCH -t 08:00:00

cd $SCRATCH/sweep
# one run for each temperature, all at once
for T in 280 290 300 310; do
    mkdir -p T$T
    srun -N 1 -n 32 -c 2 --mem=110G --exact ./mc --temperature $T --dir T$T > T$T/log 2>&1 &
done
echo "all runs started"
