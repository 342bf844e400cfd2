"""Lightning: a callback that makes a Trainer's run one of Holdfast's: saved, stopped in time,
resumed bit for bit.
"""

from .callback import Holdfast

__all__ = ["Holdfast"]
