#!/bin/bash
#SBATCH --partition=long
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=5-00:00:00
#SBATCH --job-name=ckpt-example
#SBATCH --signal=USR1@60
#SBATCH --output=%x_%j.out

save() {
    echo "caught USR1, saving"
    kill -USR1 "$PID"
    wait "$PID"
}
trap save USR1

module load anaconda3/2022.05
python optimise.py --state state.pkl &
PID=$!
wait "$PID"
