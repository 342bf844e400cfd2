#!/bin/bash -l
#SBATCH --job-name=chained
#SBATCH --partition=standard-g
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --account=project_name
#SBATCH --signal=B:USR1@240
#SBATCH --no-requeue
#SBATCH --open-mode=append

# save, then go on in the same job
save_and_requeue() {
    kill -USR1 $pid
    wait $pid
    scontrol requeue $SLURM_JOB_ID
}
trap save_and_requeue USR1

srun python train.py --resume auto &
pid=$!
wait $pid
