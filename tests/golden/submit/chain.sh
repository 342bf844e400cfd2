#!/bin/bash
# Written by holdfast submit. Change it as you like: holdfast lint runs/md/job.sh, then sbatch it.
#SBATCH --job-name=gmx
#SBATCH --output=runs/md/slurm-%A.out
#SBATCH --time=12:00:00
#SBATCH --requeue            # preempted, or its node lost: Slurm starts the job again
#SBATCH --array=1-10%1       # one task after the other, each going on where the last one stopped
#SBATCH --open-mode=append   # or each start would empty the output
#SBATCH --signal=B:USR1@120  # a notice, 120 to 150 s before the time is over

# Until holdfast listens the notice must not end this shell. Holdfast computes the deadline itself.
trap '' USR1

# exec: holdfast takes the place of this shell, and so hears what Slurm has to say.
exec holdfast run --run runs/md --lead=120 --app=gromacs --no-requeue --chain -- gmx mdrun -s run.tpr
