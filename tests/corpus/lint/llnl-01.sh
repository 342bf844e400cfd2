#!/bin/tcsh
#SBATCH -N 2
#SBATCH -J sph
#SBATCH -t 00:30:00
#SBATCH -p pdebug
#SBATCH -A mybank
#SBATCH -o sph.%j.out

setenv OMP_NUM_THREADS 2
cd /p/lustre1/$USER/sph
srun -n 72 ./sph params
