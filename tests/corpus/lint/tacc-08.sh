#!/bin/bash
#SBATCH -J stage-and-run
#SBATCH -o stage.o%j
#SBATCH -p normal
#SBATCH -N 1
#SBATCH -n 48
#SBATCH -t 12:00:00
#SBATCH -A myproject

cp -r $WORK/case /tmp/case
cd /tmp/case
ibrun ./lbm.x -i input.dat -restart_every 5000
cp -r /tmp/case/out $WORK/results
