#!/bin/bash -l
#SBATCH --job-name=gmx-gpu
#SBATCH --partition=small-g
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=7
#SBATCH --time=3-00:00:00
#SBATCH --account=project_name
#SBATCH --requeue
#SBATCH --open-mode=append

module load GROMACS/2024.3-cpeGNU-24.03-rocm
export OMP_NUM_THREADS=7

# three stages; each is passed over when its structure is there
for stage in nvt npt md; do
    [ -f $stage.gro ] && continue
    srun gmx_mpi mdrun -deffnm $stage -nb gpu -cpi $stage.cpt -maxh 71.5
    [ -f $stage.gro ] || break
done
