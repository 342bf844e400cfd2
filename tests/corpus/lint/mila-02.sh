#!/bin/bash
#SBATCH --job-name=preemptible
#SBATCH --partition=long
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-task=1
#SBATCH --mem=24G
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

module load cuda/12.1.1
mkdir -p $SLURM_TMPDIR/data
cp /network/datasets/imagenet/ILSVRC2012_img_val.tar $SLURM_TMPDIR/data/

exec holdfast run --run $SCRATCH/runs/$SLURM_JOB_ID -- uv run python main.py --data $SLURM_TMPDIR/data
