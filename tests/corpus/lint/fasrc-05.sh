#!/bin/bash
#SBATCH -J dmtcp
#SBATCH -p serial_requeue
#SBATCH -n 1
#SBATCH -t 2-00:00
#SBATCH --mem=4g
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH -o dmtcp_%j.out
#SBATCH --signal=B:USR1@120

exec holdfast run --app dmtcp -- ./enumerate graph_17.g6
