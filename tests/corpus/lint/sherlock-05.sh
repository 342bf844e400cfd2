#!/bin/bash
#SBATCH --job-name=array_packed
#SBATCH --array=0-99:10
#SBATCH -n 10
#SBATCH --time=00:30:00
#SBATCH -p normal

# ten small programs share each job of the array
first=$SLURM_ARRAY_TASK_ID
for k in $(seq "$first" $((first + 9))); do
    srun -n 1 --exact ./score --case "$k" > "score_$k.txt" &
done
wait
