"""Converts a run's metrics log for TensorBoard: no step is repeated and none is missing, however
often the run was killed.
"""

from .board import Board

__all__ = ["Board"]
