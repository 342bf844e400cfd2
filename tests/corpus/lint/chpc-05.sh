#!/bin/bash
#SBATCH --time=48:00:00
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --account=mygroup
#SBATCH --partition=granite
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

set -euo pipefail
source ~/miniforge3/etc/profile.d/conda.sh
conda activate phylo
exec holdfast run -- python tree_search.py --threads 16
