#!/bin/bash
#SBATCH --job-name=array_packed
#SBATCH --array=0-99:10
#SBATCH -n 10
#SBATCH --time=00:30:00
#SBATCH -p normal

for i in {0..9}; do
    srun -n 1 --exact ./app $((SLURM_ARRAY_TASK_ID + i)) &
done

wait # important: keeps the job alive until background tasks finish
