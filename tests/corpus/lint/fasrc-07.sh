#!/usr/bin/env python3
#SBATCH -J pyjob
#SBATCH -p shared
#SBATCH -n 1
#SBATCH -t 0-00:20
#SBATCH --mem=500
#SBATCH -o pyjob_%j.out

"""A batch script that is itself Python: sbatch reads the directives, python runs the rest."""
import random

random.seed(1)
print(sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(10**6)) * 4e-6)
