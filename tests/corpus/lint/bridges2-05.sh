#!/bin/bash
#SBATCH -N 1
#SBATCH -p RM
#SBATCH -t 12:00:00
#SBATCH --ntasks-per-node=128
# #SBATCH --signal=B:USR1@600

trap 'touch STOP; wait $pid' USR1
mpirun -np 128 ./dns.x -restart &
pid=$!
wait $pid
