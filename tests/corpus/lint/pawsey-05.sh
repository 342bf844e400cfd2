#!/bin/bash --login
#SBATCH --account=project
#SBATCH --partition=work
#SBATCH --nodes=2
#SBATCH --time=24:00:00
#SBATCH --dependency=afterok:123456
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@300

# second of three: begins when the first has ended in whatever way
srun -n 256 ./swash case.sws -hotstart latest -stop-on-usr1
