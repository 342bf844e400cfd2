#!/bin/bash
#SBATCH --job-name=openfoam
#SBATCH --nodes=2
#SBATCH --tasks-per-node=128
#SBATCH --time=24:00:00
#SBATCH --account=budget-code
#SBATCH --partition=standard
#SBATCH --qos=standard
#SBATCH --signal=10@300

# etc/controlDict: stopAtWriteNowSignal 10; system/controlDict: startFrom latestTime
module load openfoam/com/v2312
source ${FOAM_INSTALL_DIR}/etc/bashrc

[ -d processor0 ] || srun --ntasks=1 decomposePar
srun --distribution=block:block --hint=nomultithread interFoam -parallel
