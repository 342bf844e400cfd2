#!/bin/tcsh
#SBATCH -N 16
#SBATCH -J shock
#SBATCH -t 24:00:00
#SBATCH -p pbatch
#SBATCH -A mybank
#SBATCH --signal=B:USR1@300

trap 'touch STOP' USR1
cd /p/lustre1/$USER/shock
srun -n 576 ./ale3d shock.in -restart latest
