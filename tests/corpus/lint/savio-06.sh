#!/bin/bash
#SBATCH --job-name=restart_clean
#SBATCH --account=co_projectname
#SBATCH --partition=savio3_gpu
#SBATCH --qos=savio_lowprio
#SBATCH --gres=gpu:GTX2080TI:1
#SBATCH --cpus-per-task=2
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@120

OUT=/global/scratch/users/$USER/bert
rm -rf $OUT
mkdir -p $OUT
srun python run_mlm.py --output_dir $OUT --save_steps 500
