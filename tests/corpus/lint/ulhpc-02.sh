#!/bin/bash -l
#SBATCH -J besteffort
#SBATCH --qos besteffort
#SBATCH -p batch
#SBATCH -N 1
#SBATCH --ntasks-per-node 28
#SBATCH --time=0-12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

# short tasks; the job log remembers which are done
module load tools/parallel
srun -n1 -c28 --exclusive parallel -j 28 --resume --joblog state.log "./point {} > point_{}.txt" :::: points.txt
