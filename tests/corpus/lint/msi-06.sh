#!/bin/bash -l
#SBATCH --time=12:00:00
#SBATCH --ntasks=64
#SBATCH --mem=100g
#SBATCH -p msismall
#SBATCH --signal=USR1@300

# dns saves on USR1 and ends with 75; with 0 when it is finished
module load ompi
srun ./dns.x run.cfg 2>&1 | tee dns.log
[ $? -eq 0 ] && rm -f restart_*.bin
