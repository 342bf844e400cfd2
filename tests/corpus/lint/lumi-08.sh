#!/bin/bash -l
#SBATCH --job-name=tykky
#SBATCH --partition=small
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=08:00:00
#SBATCH --account=project_name

module load LUMI lumi-container-wrapper
# installs an environment, and compiles an extension
conda-containerize new --mamba --prefix "$PWD/env" env.yml
export PATH="$PWD/env/bin:$PATH"
make -C ext -j 16
