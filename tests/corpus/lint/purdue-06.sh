#!/bin/bash
# FILENAME:  tar.sub

#SBATCH -A mylab
#SBATCH --nodes=1 --ntasks=1
#SBATCH --time=12:00:00
#SBATCH --job-name archive

# one archive for each directory; finished ones are passed over
for d in run_*/; do
    n=${d%/}
    [ -f "/depot/mylab/archive/$n.tar.gz" ] && continue
    tar czf "/depot/mylab/archive/$n.part" "$d" && mv "/depot/mylab/archive/$n.part" "/depot/mylab/archive/$n.tar.gz"
done
