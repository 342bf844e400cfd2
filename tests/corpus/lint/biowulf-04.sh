#!/bin/bash
#SBATCH --job-name=swarm_like
#SBATCH --array=0-999%100
#SBATCH --time=00:15:00
#SBATCH --mem=2g
#SBATCH --output=/dev/null

mapfile -t cmds < commands.swarm
bash -c "${cmds[$SLURM_ARRAY_TASK_ID]}" > "swarm_$SLURM_ARRAY_TASK_ID.o" 2> "swarm_$SLURM_ARRAY_TASK_ID.e"
