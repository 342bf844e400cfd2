"""Holdfast: Lightning's callback. It begins a `TrainerFit` when the trainer's objects exist, and
ends it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self, Unpack, cast

from ..data.promise import UnprovenCode
from ..terminal import say
from ..trainers.training import RunOptions, require_one
from . import framework
from .fit import TrainerFit
from .logs import LoggerStates


class Holdfast:
    """Saves the run of a Lightning Trainer, stops it in time, and resumes it bit for bit.

        trainer = Trainer(max_epochs=10, callbacks=[Holdfast("runs/digits")])
        trainer.fit(model, loader)

    A safe point follows each optimizer step, and each epoch's end. Start the script again to go on;
    a finished run trains nothing. `state` maps names to further objects of yours; the options are
    those of `Run`. Inside the fit, `run` is the `Run`.

    Raises:
        UsageError: Lightning is not installed.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made = type(
            cls.__name__, (cls, *framework.callback_kinds()), {"__module__": cls.__module__}
        )
        return cast("Self", object.__new__(made))

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        state: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self.path, self.state, self.options = path, dict(state or {}), options
        self._fit: TrainerFit | None = None
        self._logs: LoggerStates | None = None
        self._untried: UnprovenCode | None = None
        self._method: Any = None

    @property
    def run(self) -> Any:
        """The run, while the trainer fits; otherwise None."""
        return None if self._fit is None else self._fit.run

    @property
    def log(self) -> Any:
        """`LightningModule.log`. A trainer sets it first of all:
        before its loggers choose where they write.
        """
        return self._method

    @log.setter
    def log(self, method: Any) -> None:
        self._method, self._logs = method, None
        trainer = method.__self__.trainer
        if trainer.state.fn != "fit":
            return
        require_one(trainer.callbacks, Holdfast)
        self._untried = framework.require_known(trainer)
        if trainer.fast_dev_run:
            say(f"{os.fspath(self.path)}: fast_dev_run keeps nothing")
            return
        framework.require_possible(trainer)
        framework.let_run_restore(trainer, self.path)
        # after all others
        trainer.callbacks = [each for each in trainer.callbacks if each is not self] + [self]
        self._logs = LoggerStates(trainer, self.path)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  Lightning's names
        if self._logs is not None:
            framework.require_alone(trainer)
            self._fit = TrainerFit(
                trainer, self.path, self.state, self.options, self._logs, self._untried
            )

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self._fit is not None:
            self._fit.end()
        self._end_fit(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self._end_fit(exception)

    def _end_fit(self, error: BaseException | None) -> None:
        fit, self._fit = self._fit, None
        if fit is not None:
            fit.leave(error)
