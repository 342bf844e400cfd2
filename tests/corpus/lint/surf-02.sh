#!/bin/bash
#SBATCH -n 128
#SBATCH -t 5-00:00:00
#SBATCH -p genoa
#SBATCH -J dalton

module load 2023
module load Dalton/2020.1-foss-2023a
export DALTON_TMPDIR=$TMPDIR
dalton -N 128 -o ccsd.out ccsd.dal water.mol
