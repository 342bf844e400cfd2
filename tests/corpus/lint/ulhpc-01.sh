#!/bin/bash -l
#SBATCH -J MyTestJob
#SBATCH --qos debug
#SBATCH -N 1
#SBATCH --ntasks-per-node 1
#SBATCH -c 1
#SBATCH --time=0-00:05:00
#SBATCH -p interactive

print_error_and_exit() { echo "***ERROR*** $*" >&2; exit 1; }
module purge || print_error_and_exit "No 'module' command"
module load lang/Python
python3 -m pytest -q tests
