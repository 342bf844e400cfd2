#!/bin/bash
#SBATCH -N 1
#SBATCH -J standby
#SBATCH -t 16:00:00
#SBATCH -p pbatch
#SBATCH -A mybank
#SBATCH --qos=standby
#SBATCH -o standby.%j.out

srun -n 36 ./mcnp6 i=shield.i runtpe=/tmp/runtpe
