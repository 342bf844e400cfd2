#!/bin/bash
#SBATCH --job-name=subjobs
#SBATCH --time=00:50:00
#SBATCH --nodes=4
#SBATCH --tasks-per-node=128
#SBATCH --account=budget-code
#SBATCH --partition=standard
#SBATCH --qos=standard

# 128 serial programs on each of the four nodes, all at once
for node in $(scontrol show hostnames); do
    srun -w "$node" -N 1 -n 128 --mem=200G --exact -o "point-$node-%t.txt" ./point "$node" &
done
wait        # for all four sets
