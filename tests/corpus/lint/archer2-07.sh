#!/bin/bash
#SBATCH --job-name=python-post
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --account=budget-code
#SBATCH --partition=serial
#SBATCH --qos=serial
#SBATCH --output=%x-%u-%j.log
##SBATCH --dependency=afterok:1234

# one file after the other; a file whose result is there is passed over
module load cray-python
export OMP_NUM_THREADS=8
for f in snap_*.nc; do
    [ -e "${f%.nc}.png" ] && continue
    python plot.py "$f" "${f%.nc}.tmp.png" && mv "${f%.nc}.tmp.png" "${f%.nc}.png"
done
