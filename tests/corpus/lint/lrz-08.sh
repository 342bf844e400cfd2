#!/bin/bash
#SBATCH -J pyhold
#SBATCH -o ./%x.%j.out
#SBATCH -D ./
#SBATCH --clusters=serial
#SBATCH --partition=serial_long
#SBATCH --time=4-00:00:00
#SBATCH --cpus-per-task=4
#SBATCH --export=NONE
#SBATCH --get-user-env
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120

module load slurm_setup
module load python/3.10.10-extended
prepare() {
    python split.py --in raw.h5 --out parts.tmp/ && mv parts.tmp parts
}
[ -d parts ] || prepare
exec holdfast run --run runs/fit -- python fit.py --parts parts/ --out fit.h5
