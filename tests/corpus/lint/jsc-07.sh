#!/bin/bash -x
#SBATCH --account=budget
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=24:00:00
#SBATCH --partition=batch
#SBATCH --output=ksweep.%j

set -euo pipefail
module load Stages/2024 GCC
source "$PROJECT/miniforge/bin/activate" fit

for k in 2 4 8 16 32; do
    srun python fit.py --k "$k" --out "fit_$k.npz"
done
