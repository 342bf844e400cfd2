#!/bin/bash
#SBATCH --job-name=r_trap
#SBATCH --account=fc_projectname
#SBATCH --partition=savio3
#SBATCH --time=48:00:00
#SBATCH --output=r_trap_%j.out

module load r/4.4.0
finish_up() {
    touch stop.now                # em.R looks for this file after each iteration, saves and quits
    wait $R_PID
}
trap finish_up USR1

Rscript em.R &
R_PID=$!
wait $R_PID
