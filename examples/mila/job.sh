#!/bin/bash
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4
#SBATCH --ntasks-per-node=1
#SBATCH --mem=16G
#SBATCH --time=00:15:00
#SBATCH --requeue            # preempted, or its node lost: Slurm starts the job again; out of time: main.py asks for it
#SBATCH --open-mode=append   # or each start would empty the output
#SBATCH --signal=B:USR1@300  # a notice, five minutes before the time is over

# Until Python listens the notice must not end this shell. What came before, Holdfast knows by the clock.
trap '' USR1

module --quiet purge
module load anaconda/3 cuda/11.7
conda activate pytorch

# Unpacked anew at each start: what an interruption cut short is never taken for the data set.
mkdir -p "$SLURM_TMPDIR" || exit
tar -xf "${DATASETS:-/network/datasets}/cifar10/cifar-10-binary.tar.gz" -C "$SLURM_TMPDIR" || exit

# exec: Slurm sends the notice to the shell's own process, and that is Python from here on.
exec python main.py
