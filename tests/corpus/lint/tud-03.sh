#!/bin/bash
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --time=08:00:00
#SBATCH --account=p_number_crunch

module load release/24.04 GCC/12.3.0 OpenMPI/4.1.5 OpenFOAM/v2312
source $FOAM_BASH
# a case: mesh, decompose, run, reconstruct
cd "$(ws_find foam)/cavity"
blockMesh && decomposePar -force
mpirun -np 104 pimpleFoam -parallel > log.pimpleFoam
reconstructPar
