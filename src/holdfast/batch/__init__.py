"""Batch: reads a batch script without running it:
its shell commands, its #SBATCH lines, the work that it starts.
"""
