#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=4:00:00
#SBATCH --account=account_name
#SBATCH --partition=lrd_all_serial
#SBATCH --job-name=transfer

module load rclone
rclone copy --checksum "$WORK/results" remote:archive/results
gzip -9 "$WORK"/logs/*.log
