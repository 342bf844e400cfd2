#!/bin/tcsh
#SBATCH -N 4
#SBATCH -J hold
#SBATCH -t 16:00:00
#SBATCH -p pbatch
#SBATCH -A mybank
#SBATCH --qos=standby
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

module load python/3.11
setenv RUNDIR /p/lustre1/$USER/sweep
exec holdfast run --run $RUNDIR -- srun -N 4 -n 16 python train.py --dir $RUNDIR
