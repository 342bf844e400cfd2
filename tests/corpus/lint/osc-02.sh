#!/bin/bash
#SBATCH --job-name=g16
#SBATCH --time=96:00:00
#SBATCH --nodes=1 --ntasks-per-node=40
#SBATCH --account=PROJECT
#SBATCH --signal=B:TERM@300

module load gaussian/g16c01
cp ts.com $TMPDIR
cd $TMPDIR
trap "mkdir -p $SLURM_SUBMIT_DIR/$SLURM_JOB_ID; cp -R $TMPDIR/* $SLURM_SUBMIT_DIR/$SLURM_JOB_ID; exit" TERM

g16 < ts.com > $SLURM_SUBMIT_DIR/ts.log
cp ts.chk $SLURM_SUBMIT_DIR
