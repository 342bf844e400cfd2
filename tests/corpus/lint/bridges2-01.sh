#!/bin/bash
#SBATCH -N 1
#SBATCH -p RM-shared
#SBATCH -t 00:20:00
#SBATCH --ntasks-per-node=4

#type 'man sbatch' for more information and options
set -x
./configure --prefix="$HOME/opt" && make -j4 && make install
