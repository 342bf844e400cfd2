#!/bin/bash
#SBATCH --job-name=submitter
#SBATCH --partition=dev_single
#SBATCH --ntasks=1
#SBATCH --time=5

# Submits LINKS jobs, each to begin when the one before has ended, however it ended.
links=${1:-5}
link_script=$SLURM_SUBMIT_DIR/link.sh

previous=""
for ((n = 1; n <= links; n++)); do
    previous=$(sbatch --parsable -p single ${previous:+--dependency=afterany:$previous} "$link_script" "$n") || exit 1
    echo "link $n of $links: job $previous"
done
