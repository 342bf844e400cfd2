#!/bin/bash
#SBATCH -J arraydir
#SBATCH -A PROJECT-CPU
#SBATCH -p icelake
#SBATCH --array=1-8
#SBATCH --ntasks=1
#SBATCH --time=24:00:00
#SBATCH --output=out/slurm_%A_%a.out

mkdir -p out
RUN=out/run_%a
. ~/venv/bin/activate
python infer.py --dir "$RUN" --resume
