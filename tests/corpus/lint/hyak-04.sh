#!/usr/bin/env python3
"""Fits all models, one after the other."""
import subprocess
#SBATCH --job-name=models
#SBATCH --time=04:00:00
subprocess.run(["python3", "fit.py", "--model", "all"], check=True)
