#!/bin/bash
#SBATCH -J dots
#SBATCH -A PROJECT-CPU
#SBATCH -p cclake
#SBATCH --nodes=1
#SBATCH --time=10:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

. /etc/profile.d/modules.sh
set -eu
module load miniconda/3
conda activate wave
exec holdfast run -- python wave.py
