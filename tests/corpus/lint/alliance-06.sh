#!/bin/bash
#SBATCH --account=def-someprof
#SBATCH --time=7-00:00
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G

module load StdEnv/2023 gaussian/g16.c01
cd $SLURM_TMPDIR
cp $SLURM_SUBMIT_DIR/ts.com .
g16 < ts.com > $SLURM_SUBMIT_DIR/ts.log
cp ts.chk $SLURM_SUBMIT_DIR/
