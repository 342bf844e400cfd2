#!/bin/bash
#SBATCH -J selfchain
#SBATCH -A PROJECT-CPU
#SBATCH -p icelake
#SBATCH --nodes=4
#SBATCH --ntasks=304
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@600

. /etc/profile.d/modules.sh
next=$(sbatch --parsable --dependency=afternotok:$SLURM_JOB_ID chain.sh)
# castro saves on USR1 and ends with 0
srun ./Castro3d.ex inputs amr.restart=latest
[ -f COMPLETE ] && scancel $next
