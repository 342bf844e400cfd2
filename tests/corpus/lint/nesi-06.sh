#!/bin/bash -e
#SBATCH --job-name=cwd
#SBATCH --time=24:00:00
#SBATCH --mem=32G
#SBATCH --account=myproject
#SBATCH --signal=USR1@300

set +e
cd /nesi/nobackup/myproject/$RUN_NAME
rm -rf old; mv current old; mkdir current
java -Xmx30g -jar beagle.jar gt=in.vcf.gz out=current/phased
