"""Attributes of the user's own module, data module and callbacks,
which Lightning's checkpoints do not contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..trainers.attributes import PlainAttributes, names_set_by
from . import framework


def attributes_of(trainer: Any, callbacks: Mapping[str, Any]) -> dict[str, PlainAttributes]:
    """Return the attributes of the module, of the data module,
    and of each callback with a class of the user.
    """
    package = framework.module_of(trainer, "core")
    found = {
        "module": PlainAttributes(trainer.lightning_module, set(vars(package.LightningModule())))
    }
    if trainer.datamodule is not None:
        found["datamodule"] = PlainAttributes(
            trainer.datamodule, set(vars(package.LightningDataModule()))
        )
    home = framework.package_of(trainer).partition(".")[0]
    for key, callback in callbacks.items():
        theirs = [
            kind for kind in type(callback).__mro__ if kind.__module__.partition(".")[0] == home
        ]
        if type(callback) not in theirs:
            found[f"callback {key}"] = PlainAttributes(
                callback, {name for kind in theirs for name in names_set_by(kind)}
            )
    return found
