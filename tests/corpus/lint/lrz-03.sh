#!/bin/bash
#SBATCH -J serial
#SBATCH -o ./%x.%j.%N.out
#SBATCH -D ./
#SBATCH --get-user-env
#SBATCH --clusters=serial
#SBATCH --partition=serial_std
#SBATCH --mem=800mb
#SBATCH --cpus-per-task=1
#SBATCH --mail-type=end
#SBATCH --export=NONE
#SBATCH --time=24:00:00

module load slurm_setup
module load python/3.10.10-extended
./montecarlo -n 100000000000 -o mc.dat
