#!/bin/bash
#SBATCH --job-name=trap_none
#SBATCH --nodes=1
#SBATCH --ntasks=36
#SBATCH --time=3-00:00:00
#SBATCH --account=test
#SBATCH --partition=standard

module load openmpi lammps
on_usr1() {
    echo "time is nearly up"
    touch STOP_LAMMPS
    wait "$lmp"
    sbatch "$SLURM_SUBMIT_DIR/job.sh"
}
trap on_usr1 SIGUSR1
mpirun lmp -in stoppable.in &
lmp=$!
wait "$lmp"
