#!/bin/bash
# Written by holdfast submit. Change it as you like: holdfast lint .holdfast/train/job.sh, then sbatch it.
#SBATCH --job-name=train
#SBATCH --output=.holdfast/train/slurm-%j.out
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=4
#SBATCH --time=60
#SBATCH --requeue            # preempted, or its node lost: Slurm starts the job again
#SBATCH --open-mode=append   # or each start would empty the output
#SBATCH --signal=B:USR2@120  # a notice, 120 to 150 s before the time is over

# Until holdfast listens the notice must not end this shell. Holdfast computes the deadline itself.
trap '' USR2

# Copies $1 to the node's own disk, unless a whole copy is there already that is not older.
stage() {
    local copy=$SLURM_TMPDIR/${1##*/}
    mkdir -p "$SLURM_TMPDIR" || return
    [ -e "$copy.whole" ] && [ -z "$(find -L "$1" -newer "$copy.whole" -print -quit)" ] && return
    rm -rf "$copy" "$copy.whole" && touch "$copy.begun" && cp -RL "$1" "$copy" && mv "$copy.begun" "$copy.whole"
}
: "${SLURM_TMPDIR:?is not set on this cluster: export it, with holdfast submit --setup}"
export -f stage
srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" bash -c 'stage "$0"' /data/big || exit 1

# exec: holdfast takes the place of this shell, and so hears what Slurm has to say.
exec holdfast run --run .holdfast/train --lead=120 -- srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python train.py
