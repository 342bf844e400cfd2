#!/bin/bash
#SBATCH --job-name=escalate
#SBATCH --partition=ckpt-all
#SBATCH --account=mylab
#SBATCH --ntasks=40
#SBATCH --time=8:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@1800

module load ompi
# thirty minutes of notice; wrf goes on from the newest wrfrst
stop_wrf() { touch stop_wrf; }
trap stop_wrf USR1
./link_restart.sh
mpirun wrf.exe &
pid=$!
while kill -0 $pid 2>/dev/null; do
    wait $pid
done
if [ -f stop_wrf ]; then
    rm stop_wrf
    scontrol requeue $SLURM_JOB_ID
fi
