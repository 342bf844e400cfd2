#!/bin/bash
#SBATCH --job-name=cryosparc
#SBATCH --time=3-00:00:00
#SBATCH --gres=gpu:A40:2
#SBATCH --mem=128G
#SBATCH --output=cryosparc.log
#SBATCH --array=1-3

module load relion/5.0
srun relion_refine_mpi --o Refine3D/job00$SLURM_ARRAY_TASK_ID/run --i particles_$SLURM_ARRAY_TASK_ID.star --gpu
