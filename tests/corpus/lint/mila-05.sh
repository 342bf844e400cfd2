#!/bin/bash
#SBATCH --job-name=tmpdir-ckpt
#SBATCH --partition=long
#SBATCH --gres=gpu:a100l:1
#SBATCH --cpus-per-task=6
#SBATCH --mem=48G
#SBATCH --time=24:00:00

module load python/3.10
source $HOME/venvs/rl/bin/activate

cp -r $SCRATCH/rl/data $SLURM_TMPDIR
srun python ppo.py --data $SLURM_TMPDIR/data --checkpoint-dir $SLURM_TMPDIR/ckpt
