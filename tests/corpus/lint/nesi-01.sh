#!/bin/bash -e
#SBATCH --job-name=MySerialJob
#SBATCH --time=00:05:00
#SBATCH --mem=512MB
#SBATCH --account=myproject

pwd
./checksum_all data/
