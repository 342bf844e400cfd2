"""Transformers: `Holdfast`, a callback of Hugging Face's Trainer, which makes its training resume
bit for bit.

from holdfast.transformers import Holdfast

trainer = Trainer(model, args, train_dataset=dataset, callbacks=[Holdfast("runs/x")])
trainer.train()

callback.py   the callback: what the user writes, and what it refuses
walk.py       the loop of one train(): what is replaced on the trainer, and where its safe points
              are
progress.py   what the trainer remembers beside its model: its state, its sums, its callbacks
loaders.py    what the trainer's loaders read
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from .callback import Holdfast

__all__ = ["Holdfast"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import callback
    except ModuleNotFoundError as error:
        if error.name not in {"transformers", "accelerate", "torch"}:
            raise
        wanted = "pip install 'transformers[torch]>=5.6'"
        raise UsageError(
            f"holdfast.transformers needs {error.name}, which is not installed: {wanted}"
        ) from None
    return getattr(callback, name)
