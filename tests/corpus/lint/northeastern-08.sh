#!/bin/bash
#SBATCH --partition=short
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=24:00:00
#SBATCH --job-name=blast
#SBATCH --output=blast_%j.out
#SBATCH --signal=B:USR1@120
#SBATCH --signal=B:TERM@600

PARTS=(parts/*.fa)
trap 'echo "stopping after part $i" ; exit 75' USR1

module load ncbi-blast+/2.14
for i in "${!PARTS[@]}"; do
    out=hits/$(basename "${PARTS[$i]}").tsv
    [ -s "$out" ] && continue
    blastn -db nt -query "${PARTS[$i]}" -outfmt 6 -out "$out.part" && mv "$out.part" "$out"
done
