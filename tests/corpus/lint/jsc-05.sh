#!/bin/bash -x
#SBATCH --account=budget
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=48
#SBATCH --output=chain-%j.out
#SBATCH --time=23:30:00
#SBATCH --partition=batch

# one link of a chain: submits the next one first, which runs only if this one succeeds
if [ "${LINK:-1}" -lt 10 ]; then
    sbatch --dependency=afterok:$SLURM_JOB_ID --export=ALL,LINK=$((${LINK:-1} + 1)) chain.sh
fi
module load Stages/2024 GCC ParaStationMPI
srun ./icon_model --restart
