"""Lint: where a Slurm batch script behaves otherwise than its author expects."""

from .check import RULES, Finding, apply_fixes, is_refused, lint_script

__all__ = ["RULES", "Finding", "apply_fixes", "is_refused", "lint_script"]
