#!/bin/bash
#SBATCH -n 16
#SBATCH -t 5:00
#SBATCH -p rome

module load 2023
module load Python/3.11.3-GCCcore-12.3.0

# five minutes: input to the node, result back
cp $HOME/mesh.msh "$TMPDIR"
python refine.py "$TMPDIR"/mesh.msh "$TMPDIR"/fine.msh
cp "$TMPDIR"/fine.msh $HOME
