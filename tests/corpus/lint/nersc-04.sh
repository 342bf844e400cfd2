#!/bin/bash
#SBATCH -A myproject
#SBATCH -C cpu
#SBATCH -q regular
#SBATCH -N 4
#SBATCH --time-min=02:00:00
#SBATCH --time=48:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --comment=96:00:00

# VASP stops at the next ionic step when it finds STOPCAR
checkpoint() {
    echo "LSTOP = .TRUE." > STOPCAR
}
trap checkpoint USR1

module load vasp/6.4.2-cpu
[ -s CONTCAR ] && cp CONTCAR POSCAR

srun -n 512 -c 2 --cpu-bind=cores vasp_std &
pid=$!
while kill -0 $pid 2>/dev/null; do wait $pid; status=$?; done

if [ -e STOPCAR ]; then
    rm -f STOPCAR
    [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ] && scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
