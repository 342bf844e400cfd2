"""TrainerFit: one `trainer.fit` as a run. The methods that it wraps are restored when the run ends.

Lightning's own way to restart inside an epoch is not used: it steps schedulers twice and begins
running means anew. The loops begin as in a fresh process, with the counters of the checkpoint. The
hooks of an epoch's beginning are called again when a run goes on in its middle, with the random
numbers of that time and without loggers, because they may set up things outside of the state. Their
changes to the state are undone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ..data.promise import UnprovenCode
from ..errors import Stopped, UsageError
from ..run.passes import ENDLESS
from ..trainers.training import RunOptions, Training, merge_states
from . import framework
from .batches import replace_loaders
from .logs import LoggerStates
from .memory import TrainerState

_FAREWELL_S = 30.0  # how long the first process waits, after a stop, for those that it has started
_NO_BATCH = "the training loader gave no batch: nothing was trained, and the run is not finished"


class TrainerFit:
    """The run of one `trainer.fit`, from `on_fit_start` to its end."""

    def __init__(
        self,
        trainer: Any,
        path: str | os.PathLike[str],
        state: Mapping[str, Any],
        options: RunOptions,
        logs: LoggerStates,
        untried: UnprovenCode | None,
    ) -> None:
        self._trainer, self._loops, self._logs = trainer, trainer.fit_loop, logs
        self._epochs = trainer.fit_loop.epoch_loop
        self._memory = TrainerState(trainer, logs)
        total = self._loops.max_epochs
        objects = _tracked_objects(trainer, self._memory, state)
        self._training = Training(
            path, objects, options, epochs=ENDLESS if total < 0 else total, untried=untried
        )
        self.run, self._loop = self._training.run, self._training.loop
        self._pending = 0  # batches since the last safe point
        self._open = False  # whether an epoch of the run is open
        self._feeding = False  # whether iterators are made for an epoch that has begun
        self._goes_on_inside = False  # whether this epoch goes on in its middle
        self._barren = False  # whether epochs have begun, and no batch has come
        self._fed = False
        try:
            self._start_run()
        except BaseException as error:
            self._training.end_run(error)
            raise

    def end(self) -> None:
        """End the run after the fit.

        Raises:
            UsageError: the training loader gave no batch.
        """
        if self._loops.max_batches == 0 and self._loop.goes_on:
            raise UsageError(_NO_BATCH)
        self.leave()

    def leave(self, error: BaseException | None = None) -> None:
        """End the run, unless it has ended. Without an error the run is finished."""
        self._training.end_run(error)
        if isinstance(error, Stopped):
            self._wait_for_children()

    def _start_run(self) -> None:
        trainer, replace, memory = self._trainer, self._training.replace, self._memory
        replace(trainer._signal_connector, "register_signal_handlers", lambda: None)
        framework.warn_of_ignored_options(trainer)
        if memory.restored and memory.limit_was_raised():
            self._loop.reopen()
        self._training.require_more()
        if not self._loop.goes_on:
            trainer.should_stop = True
        self._logs.begin(self._training, memory.restored.get("loggers"))
        if memory.restored:
            replace(trainer, "num_sanity_val_steps", 0)
            replace(*framework.without_hyperparameters(trainer))
        memory.files.begin(self._training, memory.restored.get("checkpoints", {}))
        self._wrap(self._loops, "_load_combined_loader_states", lambda _: self._replace_loaders())
        self._wrap(self._loops, "on_advance_start", self._epoch_begins)
        self._wrap(self._loops, "on_run_end", self._training_ends)
        self._wrap(self._epochs, "reset", self._reset)
        self._wrap(self._epochs, "on_run_start", self._begin_fetching)
        self._wrap(self._epochs, "on_advance_end", self._batch_ends)
        self._wrap(trainer._logger_connector, "log_metrics", self._log)
        # configure_optimizers has asked for the number of steps
        if self._loops._combined_loader is not None:
            self._replace_loaders()

    def _wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace a method by `wrapper`, which gets the method and its arguments."""
        plain = getattr(owner, name)
        self._training.replace(owner, name, lambda *args, **kwargs: wrapper(plain, *args, **kwargs))

    def _replace_loaders(self) -> None:
        """Let Lightning iterate the run's batches from now on. Lightning's own restore of loaders
        is disabled.
        """
        combined = self._loops._combined_loader
        self._training.replace(combined, "flattened", replace_loaders(combined, self._batches))

    def _batches(self, loader: Any) -> Iterator[Any]:
        return self._loop.batches(loader) if self._feeding else iter(())

    def _epoch_begins(self, plain: Callable[[], None]) -> None:
        self._end_epoch(last=False)
        self._goes_on_inside = self._loop.in_epoch
        self._barren = not (self._fed or self._goes_on_inside)
        self._memory.restore_again()
        self._loop.begin_epoch()
        self._open = True
        if self._goes_on_inside:
            for progress in (self._loops.epoch_progress.total, self._loops.epoch_progress.current):
                progress.ready, progress.started = progress.ready - 1, progress.started - 1
            with self._without_loggers():
                plain()
        else:
            plain()

    @contextmanager
    def _without_loggers(self) -> Iterator[None]:
        loggers, silent = (
            self._trainer.loggers,
            framework.module_of(self._trainer, "loggers.logger").DummyLogger,
        )
        self._trainer.loggers = [silent() for _ in loggers]
        try:
            yield
        finally:
            self._trainer.loggers = loggers

    def _reset(self, plain: Callable[[], None]) -> None:
        if not self._goes_on_inside:
            plain()

    def _begin_fetching(self, plain: Callable[[Any], None], fetcher: Any) -> None:
        """Let the epoch's iterators begin. Lightning makes those of its first epoch before the
        epoch begins.
        """
        if self._goes_on_inside:
            self._memory.restore_again()
        self._goes_on_inside, self._feeding = False, True
        if self._trainer.current_epoch == 0:
            iter(fetcher)
        plain(fetcher)
        self._feeding = False

    def _batch_ends(self, plain: Callable[[Any], None], fetcher: Any) -> None:
        plain(fetcher)
        self._pending, self._fed, self._barren = self._pending + 1, True, False
        if self._epochs._should_accumulate() or self._epochs.done:
            # a gradient is pending; or what follows the epoch's last batch has still to come
            return
        self._memory.note_step()
        pending, self._pending = self._pending, 0
        self._loop.step_done(pending)

    def _end_epoch(self, *, last: bool) -> None:
        """End the open epoch with a safe point."""
        if self._open:
            self._memory.note_step()
            self._open, pending, self._pending = False, self._pending, 0
            self._loop.end_epoch(pending, last=last)

    def _training_ends(self, plain: Callable[[], None]) -> None:
        """End the last epoch after the hooks at the training's end, because weight averaging
        changes the weights there.
        """
        plain()
        if self._barren:
            raise UsageError(_NO_BATCH)
        self._end_epoch(last=True)
        self.leave()

    def _log(
        self, plain: Callable[..., None], metrics: Mapping[str, Any], step: int | None = None
    ) -> None:
        """Log what Lightning gives its loggers, except the numbers of each batch of a
        validation.
        """
        plain(metrics, step=step)
        if step is None and metrics:
            self.run.log(**{name: float(value) for name, value in metrics.items()})

    def _wait_for_children(self) -> None:
        """Wait for the processes that Lightning has started: its observer would take their exit
        code 75 for a crash, and kill.
        """
        processes: list[Any] = getattr(self._trainer.strategy.launcher, "procs", [])
        mine = list(processes)
        processes.clear()
        until = time.monotonic() + _FAREWELL_S
        for process in mine:
            with suppress(Exception):
                process.wait(max(0.0, until - time.monotonic()))


def _tracked_objects(
    trainer: Any, memory: TrainerState, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the objects that the run tracks, by name."""
    found = {"model": trainer.model, "trainer": memory}
    found |= _number_objects("optimizer", trainer.optimizers)
    found |= _number_objects(
        "scheduler", [config.scheduler for config in trainer.lr_scheduler_configs]
    )
    averages = [
        getattr(each, "_average_model", None)
        for each in trainer.callbacks
        if framework.is_a(each, "WeightAveraging")
    ]
    found |= _number_objects("average", [model for model in averages if model is not None])
    return merge_states(found, state)


def _number_objects(name: str, objects: list[Any]) -> dict[str, Any]:
    return (
        {name: objects[0]}
        if len(objects) == 1
        else {f"{name}{at}": each for at, each in enumerate(objects)}
    )
