#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
#SBATCH --time=1-00:00:00
#SBATCH --account=p_number_crunch
#SBATCH --partition=alpha
#SBATCH --signal=B:USR1@180

COMPUTE_WS=gpfs
test -d "$(ws_find $COMPUTE_WS)" || ws_allocate $COMPUTE_WS 30
trap 'touch "$(ws_find $COMPUTE_WS)/stop"; wait $PID' USR2
python gan.py --dir "$(ws_find $COMPUTE_WS)" --resume &
PID=$!
wait $PID
