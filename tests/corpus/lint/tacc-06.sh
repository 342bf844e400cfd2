#!/bin/bash
#SBATCH -J of-motorbike
#SBATCH -o of-motorbike.%j.out
#SBATCH -p normal
#SBATCH -N 2
#SBATCH -n 112
#SBATCH -t 24:00:00
#SBATCH -A myproject

module load openfoam
cd $SCRATCH/motorBike
blockMesh > log.blockMesh 2>&1
decomposePar > log.decomposePar 2>&1
ibrun simpleFoam -parallel > log.simpleFoam 2>&1
reconstructPar -latestTime > log.reconstructPar 2>&1
cp -r processor0 $WORK/keep/ && sbatch --dependency=afterok:$SLURM_JOB_ID continue.slurm
