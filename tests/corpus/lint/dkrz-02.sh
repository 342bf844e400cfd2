#!/bin/ksh -l
#SBATCH --job-name=exp.nwp_R2B6.run
#SBATCH --partition=compute
#SBATCH --nodes=32
#SBATCH --ntasks-per-node=128
#SBATCH --time=08:00:00
#SBATCH --account=myproject
#SBATCH --output=LOG.exp.nwp_R2B6.run.%j.o
#SBATCH --exclusive

# one simulated month takes six hours; ICON writes a restart file at the end of each day
thisdir=$(pwd)
[[ -f finish.status ]] && exit 0
if [[ -L restart_atm_DOM01.nc ]]; then lrestart=.true.; else lrestart=.false.; fi
sed "s/@lrestart@/$lrestart/" NAMELIST.tpl > NAMELIST_nwp
srun -l --kill-on-bad-exit=1 --cpu-bind=cores --distribution=block:cyclic ./icon
status=$?
if [[ $status -eq 0 && ! -f finish.status ]]; then
    cd $thisdir && sbatch exp.nwp_R2B6.run
fi
exit $status
