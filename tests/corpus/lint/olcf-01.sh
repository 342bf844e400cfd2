#!/bin/bash
#SBATCH -A PROJ
#SBATCH -J RunSim123
#SBATCH -o %x-%j.out
#SBATCH -t 0:30:00
#SBATCH -p batch
#SBATCH -N 16

cd "$MEMBERWORK/proj/run123" || exit 1
date
srun -N16 -n128 -c7 --gpus-per-task=1 --gpu-bind=closest ./sim.out
date
