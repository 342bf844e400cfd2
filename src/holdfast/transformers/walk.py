"""TrainerLoop: the loop of one train(), which the Trainer runs, with a run around it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from transformers import Trainer
from transformers import trainer as home

from ..data.promise import UnprovenCode
from ..run.loops import Loop
from ..run.passes import ENDLESS
from ..run.run import Run
from ..trainers.training import (
    RunOptions,
    Training,
    end_run_on_error,
    merge_states,
    replace_attribute,
)
from .loaders import LoaderProxy, with_repeatable_workers, without_global_draws
from .progress import TrainerProgress

# replaces the Trainer's own checkpoint when it continues in the middle of an epoch
_HERE = "holdfast"
_TRAINED = "trained"  # seconds


class TrainerLoop:
    """The loop of one train(), and the methods that are replaced on the trainer until the loop
    ends.

    The run is entered when all callbacks have begun, and left before the trainer loads the best
    model. Safe points are where a step has been logged, evaluated and saved. An epoch's last step
    has its safe point at the epoch's end, after its evaluation.
    """

    def __init__(
        self,
        trainer: Trainer,
        path: str | os.PathLike[str],
        state: Mapping[str, Any],
        options: RunOptions,
        untried: UnprovenCode | None,
    ) -> None:
        self._trainer, self._path, self._state, self._options = trainer, path, state, options
        self._untried = untried
        self._progress = TrainerProgress(trainer)
        self._training: Training | None = None
        self._fed: dict[int, tuple[Any, Any]] = {}  # id of the trainer's loader -> itself, and ours
        self._epoch = -1  # the epoch that the trainer is in
        self._batches = self._in_epoch = 0  # done since the last safe point; in this epoch
        self._stepped = False  # an optimizer's step was made since the last safe point
        self._train_loader: Any = None
        self._began_s = time.time()
        # which safe point comes with the next _maybe_log_save_evaluate: "step" or "epoch"
        self.due = ""
        self._changed = ExitStack()
        self._replace_methods()

    @property
    def run(self) -> Run | None:
        return None if self._training is None else self._training.run

    @property
    def _loop(self) -> Loop:
        return self._enter_run().loop

    def _replace_methods(self) -> None:
        trainer, handler = self._trainer, self._trainer.callback_handler
        for owner, name, around in (
            (handler, "on_epoch_begin", self._on_epoch_begin),
            (trainer, "_evaluate", self._evaluate),
            (trainer, "_run_epoch", self._run_epoch),
            (trainer, "_maybe_log_save_evaluate", self._maybe_log_save_evaluate),
            (trainer, "_finalize_training", self._finalize_training),
            (trainer, "_load_rng_state", self._load_rng_state),
            (trainer, "get_eval_dataloader", self._get_eval_dataloader),
        ):
            replace_attribute(
                self._changed,
                owner,
                name,
                end_run_on_error(around, getattr(owner, name), self.end_run),
            )
        replace_attribute(self._changed, trainer.args, "ignore_data_skip", False)
        plain = home.skip_first_batches

        def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
            return (
                dataloader if dataloader is self._train_loader else plain(dataloader, num_batches)
            )

        replace_attribute(self._changed, home, "skip_first_batches", skip_first_batches)

    def end_run(self, error: BaseException | None = None) -> None:
        """End the run, and undo the replacements."""
        self._changed.close()
        training, self._training = self._training, None
        if training is not None:
            training.end_run(error)

    def _enter_run(self) -> Training:
        """Enter the run, once, and restore the state."""
        if self._training is None:
            trainer, optimizer = self._trainer, self._trainer.optimizer
            own = {
                "model": trainer.model_wrapped,
                "optimizer": getattr(optimizer, "optimizer", optimizer),
                "scheduler": trainer.lr_scheduler,
                "scaler": trainer.accelerator.scaler,
                "trainer": self._progress,
            }
            state = merge_states(own, self._state)
            self._progress.note_attributes()
            epochs = trainer.state.num_train_epochs  # endless for a stream without a length
            self._training = Training(
                self._path,
                state,
                self._options,
                epochs=epochs if epochs < ENDLESS else None,
                steps=trainer.state.max_steps,
                untried=self._untried,
            )
            self._training.require_more()
            loop = self._training.loop
            self._progress.durations = loop.durations
            self._progress.fill_timings()
            self._progress.require_same_epochs()
            if loop.in_epoch:
                self._progress.require_same_groups()
            self._began_s = time.time() - loop.durations.get(_TRAINED, 0.0)
        return self._training

    # Called by the callback
    # ------------------------------------------------------------------------------------

    def batch_done(self) -> None:
        self._batches += 1
        self._in_epoch += 1

    def log(self, logs: Mapping[str, Any]) -> None:
        if self._training is not None:
            self._progress.note_timings()
            numbers = {
                name: value for name, value in logs.items() if isinstance(value, int | float)
            }
            numbers.pop("epoch", None)
            self._training.run.log(**numbers)

    # Around the Trainer's own methods
    # ---------------------------------------------------------------------------

    def _on_epoch_begin(
        self, original: Callable[..., Any], args: Any, state: Any, control: Any, **kwargs: Any
    ) -> Any:
        self._epoch += 1
        loop = self._loop
        if self._is_done():
            return control
        self._in_epoch, self._batches = (loop.consumed() if loop.in_epoch else 0), 0
        loop.begin_epoch()
        return original(args, state, control, **kwargs)

    def _is_done(self) -> bool:
        """Return whether an earlier attempt did all of the epoch that the trainer is in."""
        return not self._loop.goes_on or self._epoch < self._loop.epoch

    def _evaluate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("skip_scheduler"):  # eval_on_start, before the first epoch
            self._enter_run()
            if self._progress.restored:
                return None
        return original(*args, **kwargs)

    def _run_epoch(self, original: Callable[..., Any], **kwargs: Any) -> Any:
        if self._is_done():
            self._trainer.control.should_training_stop |= not self._loop.goes_on
            return None
        kwargs |= {
            "train_dataloader": self._loader_over_loop(kwargs["train_dataloader"]),
            "start_time": self._began_s,
        }
        self._steps_in_epoch = kwargs["steps_in_epoch"]
        if self._in_epoch:
            kwargs |= {
                "resume_from_checkpoint": _HERE,
                "epochs_trained": kwargs["epoch"],
                "steps_trained_in_current_epoch": self._in_epoch,
            }
        return original(**kwargs)

    def _maybe_log_save_evaluate(
        self, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> None:
        original(*args, **kwargs)
        due, self.due = self.due, ""
        loop, control = self._loop, self._trainer.control
        loop.durations[_TRAINED] = time.time() - self._began_s
        if due == "step":
            self._stepped = True
            if not (control.should_training_stop or control.should_epoch_stop or self._is_at_end()):
                loop.step_done(self._batches_since_safe_point())
        elif due == "epoch" and control.should_training_stop and not self._is_at_end():
            if self._stepped:
                # not the epoch's end: with a larger max_steps it goes on here
                loop.step_done(self._batches_since_safe_point())
        elif due == "epoch":
            stepped = self._stepped
            taken = self._batches_since_safe_point()
            loop.end_epoch(taken if stepped else 0, last=control.should_training_stop)

    def _batches_since_safe_point(self) -> int:
        """Return the number of batches since the last safe point, and begin to count anew."""
        taken, self._batches, self._stepped = self._batches, 0, False
        return taken

    def _is_at_end(self) -> bool:
        """Return whether the epoch's last batch is done."""
        ended = getattr(self._train_loader, "end_of_dataloader", False)
        return bool(ended) or self._in_epoch >= self._steps_in_epoch

    def _finalize_training(
        self, original: Callable[..., Any], trial: Any, samples: Any, start_time: float
    ) -> Any:
        del start_time
        self._enter_run()
        self.end_run()
        return original(trial, samples, self._began_s)

    def _load_rng_state(self, original: Callable[..., Any], checkpoint: str | None) -> None:
        if checkpoint != _HERE:  # there the first fetch of the loop has restored them
            original(checkpoint)

    # Loaders
    # ----------------------------------------------------------------------------------------------

    def _loader_over_loop(self, loader: Any) -> Any:
        """Return the trainer's loader, reading its batches from the run's loop."""
        if id(loader) not in self._fed:
            inside = getattr(loader, "base_dataloader", loader)
            walked = LoaderProxy(
                with_repeatable_workers(inside, self._options.get("seed") or 0), self._batches_of
            )
            self._fed[id(loader)] = loader, walked
            if inside is not loader:
                replace_attribute(self._changed, loader, "base_dataloader", walked)
        self._train_loader = (
            loader if hasattr(loader, "base_dataloader") else self._fed[id(loader)][1]
        )
        return self._train_loader

    def _batches_of(self, loader: Any) -> Any:
        return self._loop.batches(loader)

    def _get_eval_dataloader(self, original: Callable[..., Any], eval_dataset: Any = None) -> Any:
        """A persistent evaluation loader draws from a stream of its own,
        and once from the global one, as torch's.
        """
        loader = original(eval_dataset)
        inside = getattr(loader, "base_dataloader", loader)
        if not getattr(inside, "persistent_workers", False):
            return loader
        name = eval_dataset if isinstance(eval_dataset, str) else "eval"
        if name not in self._progress.evaluated:
            self._progress.evaluated.add(name)
            torch.empty((), dtype=torch.int64).random_()
        if inside.generator is None and hasattr(loader, "base_dataloader"):
            replace_attribute(
                self._changed,
                loader,
                "base_dataloader",
                without_global_draws(inside, self._options.get("seed") or 0),
            )
        return loader
