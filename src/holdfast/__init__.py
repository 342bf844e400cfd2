"""Holdfast: saves, verifies, stops in time, is started again and goes on exactly where it left off.

What a training script writes:

    from holdfast import Best, Every, Last, Run

    with Run("runs/digits", dict(model=model, optimizer=optimizer), keep=Last(3)) as run:
        for epoch in run.epochs(10):
            for x, y in run.batches(loader):
                ...
"""

from .data import Seeded
from .errors import HoldfastError, Stopped
from .rules import Best, Every, Last, Whole, Within
from .run import opened as _opened  # in a drilled process it listens to what is opened
from .run.fields import Fields
from .run.run import Run
from .run.weights import StartFrom, load_into
from .state.codec import register
from .store.checkpoint import Checkpoint
from .store.store import Store

__all__ = [
    "Best",
    "Checkpoint",
    "Every",
    "Fields",
    "HoldfastError",
    "Last",
    "Run",
    "Seeded",
    "StartFrom",
    "Stopped",
    "Store",
    "Whole",
    "Within",
    "load_into",
    "register",
]

_opened.begin()
