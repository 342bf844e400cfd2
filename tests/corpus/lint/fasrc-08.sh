#!/bin/bash
#SBATCH -J comsol
#SBATCH -p sapphire
#SBATCH -n 16
#SBATCH -N 1
#SBATCH -t 7-00:00
#SBATCH --mem=120g
#SBATCH -o $HOME/logs/comsol_%j.out

module load comsol/6.2-fasrc01
comsol batch -np 16 -inputfile antenna.mph -outputfile antenna_out.mph -recover
