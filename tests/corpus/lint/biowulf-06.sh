#!/bin/bash
#SBATCH --job-name=wait_once
#SBATCH --time=3-00:00:00
#SBATCH --mem=16g
#SBATCH --signal=B:USR1@180

trap 'kill -USR1 $p1 $p2' USR1
./sim --dir a --resume & p1=$!
./sim --dir b --resume & p2=$!
wait
