#!/bin/bash
#SBATCH -J mc_array
#SBATCH -p serial_requeue
#SBATCH -c 1
#SBATCH -t 0-00:30
#SBATCH --mem=1000
#SBATCH --array=1-500
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH -o mc_%A_%a.out
#SBATCH -e mc_%A_%a.err

# a task that is preempted simply runs again; the result appears whole or not at all
out=result_${SLURM_ARRAY_TASK_ID}.txt
[ -s "$out" ] && exit 0
./mc_pi -s "${SLURM_ARRAY_TASK_ID}" > "$out.tmp" && mv "$out.tmp" "$out"
