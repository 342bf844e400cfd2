"""Lint: where a Slurm batch script behaves otherwise than its author expects."""

from .check import RULES, Finding, fixed, lint

__all__ = ["RULES", "Finding", "fixed", "lint"]
