#!/bin/bash
#SBATCH --job-name=greasy
#SBATCH -D .
#SBATCH --output=greasy_%j.out
#SBATCH --ntasks=33
#SBATCH --time=48:00:00
#SBATCH --qos=gp_bscls
#SBATCH --account=group

# each line of the list takes some minutes; greasy leaves a restart file with the lines not done
module load greasy
list=tasks.txt
[ -f tasks.txt.rst ] && list=tasks.txt.rst
greasy "$list"
