#!/bin/bash
# Written by holdfast submit. Change it as you like: holdfast lint .holdfast/train/job.sh, then sbatch it.
#SBATCH --job-name=train
#SBATCH --output=.holdfast/train/slurm-%j.out
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=0:15:00
#SBATCH --requeue            # preempted, or its node lost: Slurm starts the job again
#SBATCH --open-mode=append   # or each start would empty the output
#SBATCH --signal=B:USR1@300  # a notice, 300 to 330 s before the time is over

# Until holdfast listens the notice must not end this shell. Holdfast computes the deadline itself.
trap '' USR1

# A line that fails ends the job, with its exit code.
set_up_done() {
    local code=$?
    [ "$code" -eq 0 ] && return
    echo "holdfast: set-up ended with exit code $code: $1" >&2
    echo 'holdfast: when that is mended, go on with: holdfast submit --continue .holdfast/train' >&2
    exit "$code"
}
module load anaconda/3
set_up_done 'module load anaconda/3'
conda activate pytorch
set_up_done 'conda activate pytorch'

# Copies $1 to the node's own disk, unless a whole copy is there already that is not older.
stage() {
    local copy=$SLURM_TMPDIR/${1##*/}
    mkdir -p "$SLURM_TMPDIR" || return
    [ -e "$copy.whole" ] && [ -z "$(find -L "$1" -newer "$copy.whole" -print -quit)" ] && return
    rm -rf "$copy" "$copy.whole" && touch "$copy.begun" && cp -RL "$1" "$copy" && mv "$copy.begun" "$copy.whole"
}
: "${SLURM_TMPDIR:?is not set on this cluster: export it, with holdfast submit --setup}"
stage '/network/datasets/cifar 10' || exit 1
stage /network/datasets/cifar.tar.gz || exit 1

# exec: holdfast takes the place of this shell, and so hears what Slurm has to say.
exec holdfast run --run .holdfast/train --lead=300 -- python train.py
