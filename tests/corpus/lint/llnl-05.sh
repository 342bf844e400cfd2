#!/bin/csh
#SBATCH -N 8
#SBATCH -t 24:00:00
#SBATCH -p pbatch
#SBATCH -A mybank

set dir = /p/lustre1/$USER/hydro
cd $dir
if (-e done.txt) exit 0
# stops by itself after 23 hours; the job is submitted until done.txt is there
srun -n 288 ./hydro -input deck.in -maxwall 23:00 -restart_or_start
