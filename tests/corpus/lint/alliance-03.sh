#!/bin/bash
#SBATCH --account=def-someprof
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=3
#SBATCH --mem=32000M
#SBATCH --time=0-23:00
#SBATCH --output=%N-%j.out

module load python/3.11
virtualenv --no-download $SLURM_TMPDIR/env
source $SLURM_TMPDIR/env/bin/activate
pip install --no-index -r requirements.txt

tar xf ~/projects/def-someprof/shared/data.tar -C $SLURM_TMPDIR
python train.py --data $SLURM_TMPDIR/data --logdir $SCRATCH/runs/$SLURM_JOB_ID
