#!/bin/bash
#SBATCH --job-name=gnu-parallel
#SBATCH --account=fc_projectname
#SBATCH --partition=savio2
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=6
#SBATCH --cpus-per-task=4
#SBATCH --time=12:00:00
#SBATCH --open-mode=append

## Command(s) to run: each line takes about five minutes; a second submission runs what is missing
module load gnu-parallel/2019.03.22
export WDIR=/global/scratch/users/$USER/blastp
cd $WDIR || exit 1
scontrol show hostnames > hostfile.$SLURM_JOB_ID

parallel --jobs 6 --sshloginfile hostfile.$SLURM_JOB_ID --wd $WDIR \
    --resume-failed --joblog task.log bash blast_one.sh {} :::: task.lst
