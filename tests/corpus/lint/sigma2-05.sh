#!/bin/bash
#SBATCH --account=nnXXXXk
#SBATCH --job-name=gmx-maxh
#SBATCH --time=1-00:00:00
#SBATCH --nodes=2 --ntasks-per-node=128

module load GROMACS/2023.1-foss-2022a
# the limit is 24 hours: mdrun must stop by itself before
srun gmx_mpi mdrun -deffnm md -cpi md.cpt -maxh 48
[ -f md.gro ] || sbatch $SLURM_SUBMIT_DIR/md.sh
