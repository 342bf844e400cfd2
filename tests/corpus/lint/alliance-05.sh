#!/bin/bash
#SBATCH --account=def-someprof
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=32
#SBATCH --mem=0
#SBATCH --time=24:00:00

module load StdEnv/2023 gcc/12.3 openmpi/4.1.5 gromacs/2024.1
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

gmx grompp -f prod.mdp -c npt.gro -t npt.cpt -p topol.top -o prod.tpr
srun gmx_mpi mdrun -deffnm prod
gmx trjconv -s prod.tpr -f prod.xtc -o prod_nojump.xtc -pbc nojump <<< "0"
