#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=32
#SBATCH --time=24:00:00
#SBATCH --account=account_name
#SBATCH --partition=dcgp_usr_prod
#SBATCH --job-name=qe_scf
#SBATCH --output=%x.%j.out

# pw.in has max_seconds = 84000, and restart_mode is set from what the last job left
module load profile/chem-phys quantum-espresso/7.2--openmpi--4.1.6--gcc--12.2.0
if [ -d out/si.save ]; then mode=restart; else mode=from_scratch; fi
sed "s/@MODE@/$mode/" pw.in.tpl > pw.in

srun pw.x -npool 4 -in pw.in > pw.$SLURM_JOB_ID.out
