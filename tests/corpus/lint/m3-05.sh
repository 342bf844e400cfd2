#!/bin/bash
#SBATCH --job-name=twice
#SBATCH --time=1-00:00:00
#SBATCH --ntasks=1
#SBATCH --mem=16G
#SBATCH --signal=B:USR1@300
#SBATCH --signal=B:USR2@60

trap 'kill -USR1 $pid; wait $pid; exit 0' USR1
./phylobayes -x 1 chain &
pid=$!
wait $pid
