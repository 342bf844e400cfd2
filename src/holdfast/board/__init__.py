"""Converts a run's metrics log for TensorBoard:
no step twice and none missing, however often the run was killed.
"""

from .board import Board

__all__ = ["Board"]
