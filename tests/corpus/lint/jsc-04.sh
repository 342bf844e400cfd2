#!/bin/bash -x
#SBATCH --account=budget
#SBATCH --nodes=1
#SBATCH --ntasks=48
#SBATCH --output=%x.%j
#SBATCH --time=06:00:00
#SBATCH --partition=batch
#SBATCH --signal=B:TERM@300

save() {
    kill -TERM "$step"
    wait "$step"
}
trap save TERM

module load GCC ParaStationMPI
srun ./wave -restart auto &
step=$!
wait "$step"
