"""Holdfast: saves, verifies, stops in time, is started again and goes on exactly where it left off.

What a training script writes:

    from holdfast import Best, Every, Last, Run

    with Run("runs/digits", dict(model=model, optimizer=optimizer), keep=Last(3)) as run:
        for epoch in run.epochs(10):
            for x, y in run.batches(loader):
                ...
"""

import atexit as _atexit
import os as _os
import sys as _sys
import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from .data import Seeded
    from .errors import HoldfastError, Stopped
    from .rules import Auto, Best, Every, Last, Whole, Within
    from .run.run import Run
    from .run.weights import StartFrom, load_into
    from .state.codec import register
    from .stateful.fields import Fields
    from .store.checkpoint import Checkpoint
    from .store.store import Store

__version__ = "0.1.0"

__all__ = [
    "Auto",
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

# Each name is imported when it is asked for: a command looks at a run without what a training loop
# needs.
_HOMES = {
    "holdfast.data": ("Seeded",),
    "holdfast.errors": ("HoldfastError", "Stopped"),
    "holdfast.rules": ("Auto", "Best", "Every", "Last", "Whole", "Within"),
    "holdfast.stateful.fields": ("Fields",),
    "holdfast.run.run": ("Run",),
    "holdfast.run.weights": ("StartFrom", "load_into"),
    "holdfast.state.codec": ("register",),
    "holdfast.store.checkpoint": ("Checkpoint",),
    "holdfast.store.store": ("Store",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
# whose names a script may write in full
_ROOMS = {"data": "holdfast.data", "errors": "holdfast.errors"}


if not _typing.TYPE_CHECKING:  # a type checker that saw it would believe every name

    def __getattr__(name: str) -> _typing.Any:
        if name in _ROOMS:
            return _import_module(_ROOMS[name])
        if name not in _HOME:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        value = globals()[name] = getattr(_import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


@_atexit.register  # so early: what a script registers after its import of Holdfast is called first
def _at_exit() -> None:
    blockless = _sys.modules.get("holdfast.run.blockless")
    if blockless is not None:
        blockless.end_runs_at_exit()


if _os.environ.get("HOLDFAST_DRILL"):
    from .script import opened as _opened  # in a drilled process it listens to what is opened

    _opened.record_opened_files()
