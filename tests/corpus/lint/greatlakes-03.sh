#!/bin/bash
#SBATCH --job-name=hb_redirect
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --mem=24g
#SBATCH --time=2-00:00:00
#SBATCH --account=test
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@240

module load python3.11-anaconda
source activate seg
export OMP_NUM_THREADS=4
exec holdfast run --retries 2 -- python -m seg.train "+experiment=large model" >> seg.log 2>&1
