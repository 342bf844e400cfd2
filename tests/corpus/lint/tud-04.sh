#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --hint=multithread
#SBATCH --time=2-00:00:00
#SBATCH --account=p_number_crunch
#SBATCH --partion=haswell

matlab -batch "sweep_all" | gzip > sweep.log.gz
