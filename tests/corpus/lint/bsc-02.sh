#!/bin/bash
#SBATCH --job-name=alya
#SBATCH -D .
#SBATCH --output=alya_%j.out
#SBATCH --error=alya_%j.err
#SBATCH --ntasks=896
#SBATCH --time=2-00:00:00
#SBATCH --qos=gp_bscls
#SBATCH --account=group
#SBATCH --signal=B:USR1@300

module load alya
srun Alya.x artery
