#!/bin/bash
#SBATCH -A PROJ
#SBATCH -J bcast
#SBATCH -o %x-%j.out
#SBATCH -t 2-00:00:00
#SBATCH -p extended
#SBATCH -N 8
#SBATCH -C nvme
#SBATCH --signal=USR2@600

# the program goes on from Orion, and writes a checkpoint there every half hour and on USR2
sbcast -pf ./lsms /mnt/bb/$USER/lsms
srun -N8 -n64 -c7 --gpus-per-task=1 /mnt/bb/$USER/lsms --restart "$MEMBERWORK/proj/lsms" -i input.lua
