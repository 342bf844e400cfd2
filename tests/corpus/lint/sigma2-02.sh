#!/bin/bash
#SBATCH --account=nnXXXXk
#SBATCH --job-name=orca
#SBATCH --time=4-00:00:00
#SBATCH --nodes=1 --ntasks-per-node=32
#SBATCH --output=orca.%j.out

set -o errexit
set -o nounset
module --quiet purge
module load ORCA/5.0.4-gompi-2022a
cp $SLURM_SUBMIT_DIR/fe.inp $SCRATCH
cd $SCRATCH
$EBROOTORCA/bin/orca fe.inp > $SLURM_SUBMIT_DIR/fe.out
cp fe.gbw fe.hess $SLURM_SUBMIT_DIR
