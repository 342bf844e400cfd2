#!/bin/bash
#SBATCH --job-name=prod
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --time=24:00:00
#SBATCH --time=12:00:00
#SBATCH --account=account_name
#SBATCH --partition=boost_usr_prod
#SBATCH --gres=gpu:4

module load namd/3.0b6
srun namd3 +devices 0,1,2,3 prod.namd > prod.log
