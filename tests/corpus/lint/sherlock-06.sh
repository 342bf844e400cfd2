#!/bin/bash
#SBATCH --job-name=self_submit
#SBATCH --time=1-00:00:00
#SBATCH -p normal
#SBATCH --signal=B:SIGUSR1@90

_resubmit() {
    sbatch $0
}
trap _resubmit SIGUSR1

ml gcc openmpi
mpirun ./flow -i duct.cfg -restart latest &
wait
