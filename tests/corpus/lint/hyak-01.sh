#!/bin/bash
#SBATCH --job-name=unit-tests
#SBATCH --partition=ckpt
#SBATCH --account=mylab
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --mem=8G
#SBATCH --time=00:15:00

module load gcc cmake
cmake -B build && cmake --build build -j 4 && ctest --test-dir build
