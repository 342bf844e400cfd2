#!/bin/bash
#SBATCH --job-name=test
#SBATCH --output=%x_%j.out
#SBATCH --ntasks=1
#SBATCH --partition=express
#SBATCH --time=00:10:00
#SBATCH --mem-per-cpu=1G

echo "Hello from $(hostname)"
