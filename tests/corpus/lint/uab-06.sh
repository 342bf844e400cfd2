#!/bin/bash
#SBATCH --job-name=afni
#SBATCH --ntasks=1
#SBATCH --partition=long
#SBATCH --time=150:00:00
#SBATCH --mem-per-cpu=16G
#SBATCH --cpu-per-task=4

module load afni
tcsh -xef proc.subj01 |& tee output.proc.subj01
