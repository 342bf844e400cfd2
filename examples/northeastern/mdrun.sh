#!/bin/bash
# 120 hours of GROMACS in ten jobs of 12, one after the other: sbatch mdrun.sh
#
# holdfast submit --chain 10 writes such a script, with
#   --partition short --nodes 1 --ntasks 56 --time 12:00:00 --run runs/myrun --app gromacs -- srun gmx_mpi mdrun -s myrun.tpr
#SBATCH --job-name=myrun
#SBATCH --partition=short
#SBATCH --nodes=1
#SBATCH --ntasks=56
#SBATCH --time=12:00:00
#SBATCH --array=1-10%1       # ten tasks, one at a time, each going on where the last one stopped
#SBATCH --output=myrun-%A.out
#SBATCH --requeue            # preempted, or its node lost: Slurm starts the task again
#SBATCH --open-mode=append   # the tasks share one output
#SBATCH --signal=B:USR1@300  # a notice, five minutes before the time is over

# Until holdfast listens the notice must not end this shell. Holdfast computes the deadline itself.
trap '' USR1

module load openmpi/4.0.5 gromacs/2020.3

# holdfast keeps mdrun's checkpoints, hands on what time is left (-maxh), and finds out whether it finished: its exit code
# does not say. --chain: the task that finishes the simulation cancels the rest. --no-requeue: the next task goes on.
exec holdfast run --run runs/myrun --app gromacs --chain --no-requeue -- srun gmx_mpi mdrun -ntomp 1 -s myrun.tpr
