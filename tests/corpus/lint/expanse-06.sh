#!/bin/bash
#SBATCH --job-name="amber"
#SBATCH --output="amber.%j.out"
#SBATCH --partition=gpu-shared
#SBATCH --gpus=1
#SBATCH --ntasks-per-node=10
#SBATCH --account=proj
#SBATCH -t 48:00:00

module load gpu/0.17.3b amber/22
# 50 pieces of half an hour, each from the restart file of the one before
for i in $(seq 1 50); do
    [ -s prod_$i.rst7 ] && continue
    pmemd.cuda -O -i prod.in -p sys.prmtop -c prod_$((i - 1)).rst7 -r tmp.rst7 -x prod_$i.nc -o prod_$i.out || exit 1
    mv tmp.rst7 prod_$i.rst7
done
