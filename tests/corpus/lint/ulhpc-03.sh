#!/bin/bash -l
#SBATCH -J besteffort-long
#SBATCH --qos besteffort
#SBATCH -p batch
#SBATCH -N 2
#SBATCH --ntasks-per-node 28
#SBATCH --time=2-00:00:00
##SBATCH --requeue
#SBATCH -o %x-%j.log

# preempted at any moment: requeued, and restarted from the last restart file
module load toolchain/foss
rst=$(ls -t rst.*.h5 2>/dev/null | head -1)
srun ./palabos duct.xml ${rst:+--restart "$rst"}
