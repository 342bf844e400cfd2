#!/bin/bash -l
#SBATCH --job-name=megatron
#SBATCH --time=24:00:00
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --account=project
#SBATCH --signal=SIGUSR2@600
#SBATCH --output=%x-%j.out
#SBATCH --dependency=singleton

# on USR2 all ranks save and end with 0; the next job of this name goes on
export MASTER_ADDR=$(hostname) MASTER_PORT=25678
if [ -f "$SCRATCH/llm/FINISHED" ]; then echo "finished"; exit 0; fi
srun -lu --environment=megatron bash -c '
    exec python pretrain_gpt.py --load '"$SCRATCH"'/llm --save '"$SCRATCH"'/llm --save-interval 500 --exit-on-usr2
'
