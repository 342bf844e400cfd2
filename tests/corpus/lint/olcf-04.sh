#!/bin/bash
#SBATCH -A PROJ
#SBATCH -J packed
#SBATCH -o %x-%j.out
#SBATCH -t 06:00:00
#SBATCH -p batch
#SBATCH -N 4

for ((n = 0; n < 4; n++)); do
    nohup srun -N1 -n8 -c7 --gpus-per-task=1 ./mini_app deck_$n.in > deck_$n.log 2>&1 &
done
sleep 5
