#!/bin/bash --login
#SBATCH --account=project-gpu
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append

# ramses saves on SIGTERM, and renames a directory when it is complete; the newest output directory is the restart
last=$(ls -d output_* 2>/dev/null | tail -1 | sed 's/output_0*//')
sed "s/@NRESTART@/${last:-0}/" sedov.nml.in > sedov.nml
srun -N 1 -n 8 -c 8 --gpus-per-node=8 ./ramses3d sedov.nml
