#!/bin/bash -l
#SBATCH --job-name=llm
#SBATCH --partition=standard-g
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=2-00:00:00
#SBATCH --account=project_name
#SBATCH --output=llm-%j.out

CONTAINER=/appl/local/containers/sif-images/lumi-pytorch.sif
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export SINGULARITYENV_PREPEND_PATH=/user-software/bin

srun singularity exec -B /scratch/project_name "$CONTAINER" \
    bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python pretrain.py --from-scratch'
