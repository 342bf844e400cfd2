#!/bin/bash
#SBATCH --job-name=oak-backup
#SBATCH --time=12:00:00
#SBATCH -p service
#SBATCH -n 1

# an interrupted transfer goes on where it stopped when the job is run again
cd $SCRATCH || exit 1
rsync -a --partial results/ $OAK/results/
tar czf $OAK/archive/code-$(date +%F).tgz code
