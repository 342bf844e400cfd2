#!/bin/bash
#SBATCH --nodes=1                    # 1 node
#SBATCH --ntasks-per-node=4          # 4 tasks per node
#SBATCH --time=00:10:00              # time limits: 10 minutes
#SBATCH --mem=10000                  # memory in MB
#SBATCH --gres=gpu:1
#SBATCH --error=myjob.err            # standard error file
#SBATCH --output=myjob.out           # standard output file
#SBATCH --account=account_name       # account name
#SBATCH --partition=boost_usr_prod   # partition name
#SBATCH --qos=boost_qos_dbg          # quality of service

srun ./myexecutable
