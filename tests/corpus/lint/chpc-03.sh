#!/bin/bash
#SBATCH --time=12:00:00
#SBATCH --ntasks=64
#SBATCH --account=mygroup-guest
#SBATCH --partition=notchpeak-guest
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@300

module load intel-oneapi-compilers intel-mpi wrf
newest=$(ls -t wrfrst_d01_* 2>/dev/null | head -1)
# stops at the next restart time on SIGTERM
srun ./wrf.exe ${newest:+-restart "$newest"} -stop-on-term
