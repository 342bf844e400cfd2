#!/bin/bash
#SBATCH --job-name=lscratch_ckpt
#SBATCH --time=5-00:00:00
#SBATCH --partition=gpu
#SBATCH --gres=gpu:a100:1,lscratch:200
#SBATCH --mem=60g
#SBATCH --signal=B:USR1@10

CK=/lscratch/$SLURM_JOB_ID/ck
mkdir -p $CK; [ -d /data/$USER/ck ] && cp -r /data/$USER/ck/. $CK
back() { rsync -a $CK/ /data/$USER/ck/; }
trap 'back; exit 0' USR1
python train.py --ckpt $CK --resume &
wait $!
back
