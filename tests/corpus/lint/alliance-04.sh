#!/bin/bash
# Ten jobs of one day, each goes on from the checkpoint of the last one
#SBATCH --account=def-someprof
#SBATCH --cpus-per-task=1
#SBATCH --time=1-00:00
#SBATCH --mem=4G
#SBATCH --array=1-10%1
#SBATCH --job-name=md-chain

echo "part $SLURM_ARRAY_TASK_ID of array $SLURM_ARRAY_JOB_ID in $PWD"
module load StdEnv/2023 gcc/12.3 openmpi/4.1.5 gromacs/2024.1
if [ -e md.gro ]; then
    scancel "$SLURM_ARRAY_JOB_ID"     # the simulation is complete
    exit 0
fi
gmx mdrun -s md.tpr -deffnm md -maxh 23.5 -cpi md.cpt -append
