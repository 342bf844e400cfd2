"""A run's metrics log as TensorBoard reads it, without a step twice or missing, however often the run was killed."""

from .board import Board

__all__ = ["Board"]
