#!/bin/bash
#SBATCH --job-name=trap-exec
#SBATCH --partition=main
#SBATCH --gres=gpu:1
#SBATCH --mem=32G
#SBATCH --time=2-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

cleanup() {
    rsync -a $SLURM_TMPDIR/ckpt/ $SCRATCH/ckpt/
    scontrol requeue $SLURM_JOB_ID
}
trap cleanup USR1

mkdir -p $SLURM_TMPDIR/ckpt && rsync -a $SCRATCH/ckpt/ $SLURM_TMPDIR/ckpt/
exec python main.py --ckpt $SLURM_TMPDIR/ckpt
