#!/bin/bash
#SBATCH --time=00:15:00
#SBATCH --account=def-someprof
nproc
free -g
