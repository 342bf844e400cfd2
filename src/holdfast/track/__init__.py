"""Trackers: W&B and MLflow get a run's metrics beside the loop, each step once, however often the
run was killed.
"""

from .options import MLflow, WandB

__all__ = ["MLflow", "WandB"]
