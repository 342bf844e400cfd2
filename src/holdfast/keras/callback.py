"""Holdfast: the callback of Keras."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

import keras

from ..run.run import Run
from ..trainers.known import NAMES
from ..trainers.names import require
from ..trainers.training import RunOptions
from .call import begin_other_callbacks, current_fit_call, require_alone
from .fitting import FitRun


class Holdfast(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Makes a call of `model.fit` resume bit for bit.

        model.fit(x, y, epochs=10, callbacks=[Holdfast("runs/digits", every=Every(minutes=10))])

    The run keeps the model, its optimizer, random numbers, metrics, the other callbacks, and the
    place in the data. `state` names further objects of yours. The options are those of
    `holdfast.Run`; `start_from` takes a file of Keras, too. A run has one call of fit(): give
    another one its own path.

    Raises:
        Stopped: in fit(), after a signal or at the deadline: the state is saved. The process ends
            with 75.
        UsageError: fit() has what cannot be resumed exactly, BackupAndRestore for one.
        Mismatch: the checkpoint is of another model or optimizer.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        state: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._untried = require("keras", NAMES["keras"])
        super().__init__()
        self._path, self._state, self._options = path, state, options
        self.run: Run | None = None  # once fit() has begun

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        call = current_fit_call(self.model)
        require_alone(call, type(self))
        begin_other_callbacks(call, self)
        self.run = FitRun(call, self, self._path, self._state, self._options, self._untried).run

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Do nothing. Because this method exists,
        Keras calls all callbacks in the loop's own thread.
        """
