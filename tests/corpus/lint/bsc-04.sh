#!/bin/bash
#SBATCH --job-name=comps
#SBATCH -D .
#SBATCH --output=comps_%A_%a.out
#SBATCH --array=1-64
#SBATCH --ntasks=1
#SBATCH --time=12:00:00
#SBATCH --qos=gp_bscls
#SBATCH --account=group
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

stop() {
    kill -USR1 $pid
    wait $pid
    scontrol requeue $SLURM_ARRAY_JOB_ID
}
trap stop USR1
./pele control_$SLURM_ARRAY_TASK_ID.conf --restart-if-any &
pid=$!
wait $pid
