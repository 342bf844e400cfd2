#!/bin/bash
#SBATCH --job-name=lammps
#SBATCH --account=project_name
#SBATCH --partition=large
#SBATCH --time=12:00:00
#SBATCH --ntasks=160
#SBATCH --mem-per-cpu=1G

module load gcc/9.4.0 openmpi/4.1.4 lammps/20220623
# restart.a and restart.b are written in turn; the newer one is read where there is one
newest=$(ls -t restart.[ab] 2>/dev/null | head -1)
# melt.in: timer timeout 11:45:00 every 100; restart 5000 restart.a restart.b
srun lmp -in melt.in ${newest:+-var rst "$newest"}
