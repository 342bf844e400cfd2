"""A checkpoint as a file of Keras: `.keras` or `.weights.h5`."""

from __future__ import annotations

import os
from typing import Any

from ..errors import Mismatch, UsageError
from ..run.weights import open_checkpoint
from .state import Variables

WEIGHTS = ".weights.h5"


def export(
    path: str | os.PathLike[str],
    model: Any,
    out: str | os.PathLike[str],
    *,
    step: int | str | None = None,
) -> None:
    """Give `model` the weights of a checkpoint, and write it to `out`: a file that ends in .keras
    or .weights.h5.

    `path` is a run's directory (its newest checkpoint, or that of `step`, or "best") or a
    checkpoint's.

    Raises:
        Mismatch: the checkpoint has other variables than `model`; nothing was changed.
        UsageError: the model is not built, or `out` has another ending.
    """
    name = os.fspath(out)
    if not name.endswith((".keras", WEIGHTS)):
        raise UsageError(f"{name}: give a name that ends in .keras or {WEIGHTS}")
    read_weights(model, path, step)
    (model.save_weights if name.endswith(WEIGHTS) else model.save)(name)


def read_weights(model: Any, path: str | os.PathLike[str], step: int | str | None = None) -> None:
    """Give `model` the weights of a checkpoint.

    Raises:
        Mismatch: it has others; nothing was changed.
    """
    if not model.built:
        raise UsageError(
            f"{model.name} is not built: call it on a batch, or model.build(...), before"
        )
    checkpoint = open_checkpoint(path, step)
    if "model" not in checkpoint.parts():
        raise Mismatch(f"{checkpoint.path} is not of a Keras model")
    Variables("the model", lambda: model.variables, model).load_state_dict(
        checkpoint.load(part="model")
    )


def load_initial_weights(model: Any, source: str | os.PathLike[str]) -> None:
    """Load the weights of a file of Keras, or of a checkpoint, into a model that begins to train.

    Raises:
        UsageError: Keras cannot read the file into the model.
    """
    name = os.fspath(source)
    if name.endswith((".h5", ".keras")):
        try:
            model.load_weights(name)
        except Exception as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"start_from={name!r}: Keras cannot read it into {model.name}: {why}"
            ) from error
    else:
        read_weights(model, source)
