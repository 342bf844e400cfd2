#!/bin/bash
# FILENAME:  standby.sub

#SBATCH -A standby
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --job-name standby

# four hours are the most, a generation takes two minutes: each submission goes on with the next one
module load anaconda
gen=$(ls pop_*.npz 2>/dev/null | sed 's/[^0-9]//g' | sort -n | tail -1)
for g in $(seq $((${gen:-0} + 1)) 500); do
    python evolve.py --from "pop_$((g - 1)).npz" --to "pop_$g.npz.part" && mv "pop_$g.npz.part" "pop_$g.npz" || exit 1
done
