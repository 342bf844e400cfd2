#!/bin/bash
#SBATCH --job-name=nemo
#SBATCH --nodes=8
#SBATCH --tasks-per-node=128
#SBATCH --time=04:00:00
#SBATCH --account=budget-code
#SBATCH --partition=standard
#SBATCH --qos=standard

# one model year takes three hours; the job writes its restart at the end and submits the next year
year=$(cat year.now)
export SRUN_CPUS_PER_TASK=1
srun --hint=nomultithread ./nemo.exe
ls restart_$((year + 1)).nc
echo $((year + 1)) > year.now
sbatch nemo.slurm
