#!/bin/csh
#SBATCH --time=3-00:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=32
#SBATCH --account=mygroup
#SBATCH --partition=granite
#SBATCH -o slurmjob-%j.out-%N

module load gaussian16
set WORKDIR = $SLURM_SUBMIT_DIR
set SCRDIR = /scratch/local/$SLURM_JOB_ID
mkdir -p $SCRDIR
cp $WORKDIR/opt.com $SCRDIR
cd $SCRDIR
g16 < opt.com > $WORKDIR/opt.log
cp opt.chk $WORKDIR
