#!/bin/bash
#SBATCH --account=def-someprof
#SBATCH --time=03:00:00
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --job-name=resubmit
#SBATCH --output=sim-%j.out

module load StdEnv/2023
# the program stops by itself after two and a half hours and writes state.dat
./simulate --state state.dat --seconds 9000

# resubmit as long as work remains, at most 40 times
n=$(cat count 2>/dev/null || echo 0)
if ! grep -q FINISHED state.dat && [ "$n" -lt 40 ]; then
    echo $((n + 1)) > count
    cd "$SLURM_SUBMIT_DIR" && sbatch resubmit.sh
fi
