#!/bin/bash
#SBATCH -c 16                # Number of cores (-c)
#SBATCH -t 3-00:00           # Runtime in D-HH:MM, minimum of 10 minutes
#SBATCH -p gpu_requeue       # Partition to submit to
#SBATCH --gres=gpu:1
#SBATCH --mem=64000          # Memory pool for all cores (see also --mem-per-cpu)
#SBATCH -o myoutput_%j.out   # File to which STDOUT will be written
#SBATCH -e myerrors_%j.err   # File to which STDERR will be written
#SBATCH --no-requeue

module load python/3.10.13-fasrc01
source activate protein
python fold.py --steps 2000000
