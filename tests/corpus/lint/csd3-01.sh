#!/bin/bash
#! Name of the job:
#SBATCH -J small
#! Which project should be charged:
#SBATCH -A PROJECT-CPU
#SBATCH -p icelake
#! How many whole nodes should be allocated?
#SBATCH --nodes=1
#SBATCH --ntasks=76
#! How much wallclock time will be required?
#SBATCH --time=00:12:00

. /etc/profile.d/modules.sh
module purge
module load rhel8/default-icl

options="-n 100"
CMD="mpirun -ppn 76 -np 76 ./bench $options"
echo -e "\nExecuting command: $CMD\n"
eval $CMD
