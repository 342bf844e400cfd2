#!/bin/bash -l
#SBATCH --time=96:00:00
#SBATCH --ntasks=1
#SBATCH --mem=8g
#SBATCH -p msilong
#SBATCH --requeue
#SBATCH --open-mode=append

requeue_on_term() {
    kill -USR1 $sim; wait $sim
    scontrol requeue $SLURM_JOB_ID
    exit 0
}
trap requeue_on_term TERM
# saves on USR1 and ends
./cellsim --in tissue.xml --resume &
sim=$!
wait $sim
