"""Holdfast: what `model.train(trainer=...)` of Ultralytics takes, so that its training is a run."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Unpack

from ultralytics.engine import trainer as home
from ultralytics.engine.model import Model
from ultralytics.utils.torch_utils import unwrap_model

from .. import disk
from ..data.seeded import SeededBatches
from ..errors import UsageError
from ..run.run import Run
from ..trainers.known import NAMES
from ..trainers.names import require
from ..trainers.rounds import ONCE
from ..trainers.training import RunOptions, Training, merge_states

_WRAPPED = (
    "_do_train",
    "_build_train_pipeline",
    "preprocess_batch",
    "optimizer_step",
    "_handle_nan_recovery",
    "_close_dataloader_mosaic",
)
_EVENTS = (
    "on_pretrain_routine_end",
    "on_train_epoch_start",
    "on_train_batch_end",
    "on_fit_epoch_end",
)
_TRAINER = ("best_fitness", "fitness", "metrics", "loss_names")
_STOPPER = ("best_fitness", "best_epoch", "possible_stop")
_CSV = "results.csv"


class _OverError(Exception):
    """Leaves the trainer's loop, because no epoch is left."""


class Holdfast:
    """Saves and resumes a training of Ultralytics.

        model.train(data="my.yaml", epochs=100, exist_ok=True, trainer=Holdfast("runs/x"))

    A safe point is where the optimizer has stepped, and the end of an epoch. A finished training
    validates `best.pt` once more and trains nothing.

    Args:
        path: the run's directory.
        trainer: a class of trainers of your own; else that of the model.
        state: further objects of yours to save and restore, by name, as in `Run`.
        options: those of `Run`: keep, every, deadline, board and so on.

    Raises:
        UsageError: this Ultralytics does not have what this wraps.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        trainer: Callable[..., Any] | None = None,
        state: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._untried = require("ultralytics", NAMES["ultralytics"])
        self._path, self._kind, self._state, self._options = path, trainer, state or {}, options
        self._trainer: Any = None
        self._begun: Training | None = None
        self._loader: Any = None
        self._scheduler: Any = None
        self._at = 0  # batches of this epoch that are trained
        self._group = 0  # those since the last safe point
        self._stepped_at = -1  # the batch of the run with which the optimizer stepped last
        # what the trainer's own loop does not know of that, until it steps for the first time
        self._unknown = 0
        self._over = False
        # of a checkpoint: running mean and gradients, until the first batch
        self._pending: dict[str, Any] | None = None

    @property
    def run(self) -> Run:
        """The run while it trains, for `run.vars` and metrics of your own.

        Raises:
            UsageError: no training is in progress.
        """
        return self._training.run

    @property
    def _training(self) -> Training:
        if self._begun is None:
            raise UsageError("holdfast.ultralytics.Holdfast: its run exists while train() trains")
        return self._begun

    def __call__(self, overrides: Mapping[str, Any], _callbacks: Any = None) -> Any:
        """Return the trainer that `model.train` makes of a class.

        Raises:
            UsageError: it was asked before, or the training could not be exact.
        """
        if self._trainer is not None:
            raise UsageError(ONCE)
        kind = self._kind or _class_of_trainer()
        self._trainer = trainer = kind(overrides=overrides, _callbacks=_callbacks)
        _require_fit(trainer)
        for name in _WRAPPED:
            around = getattr(self, f"_{name.lstrip('_')}")
            setattr(trainer, name, partial(around, getattr(trainer, name)))
        for event in _EVENTS:
            trainer.add_callback(event, getattr(self, f"_{event}"))
        return trainer

    # The state that only the trainer has
    # -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        trainer, pending = self._trainer, self._pending
        if pending is None:
            named = unwrap_model(trainer.model).named_parameters()
            pending = {
                "mean": trainer.tloss if self._at else None,
                "gradients": {name: each.grad for name, each in named if each.grad is not None},
            }
        return {
            "trainer": {name: getattr(trainer, name) for name in _TRAINER},
            "stopper": {name: getattr(trainer.stopper, name) for name in _STOPPER},
            "updates": trainer.ema.updates,
            "stepped_at": self._stepped_at,
            "pending": pending,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        trainer = self._trainer
        vars(trainer).update(state["trainer"])
        vars(trainer.stopper).update(state["stopper"])
        trainer.ema.updates = state["updates"]
        self._stepped_at, self._pending = state["stepped_at"], dict(state["pending"])
        self._unknown = self._stepped_at + 1

    # Around the trainer's own methods
    # --------------------------------------------------------------------------------

    def _do_train(self, original: Callable[[], None]) -> None:
        trainer = self._trainer
        try:
            original()
        except _OverError:
            trainer.final_eval()
            trainer.run_callbacks("on_train_end")
        except BaseException as error:
            if self._begun is not None:
                self._begun.end_run(error)
            raise
        self._training.end_run()

    def _build_train_pipeline(self, original: Callable[[], None]) -> None:
        if self._begun is not None:
            raise UsageError("out of memory: a run keeps its batch size. Give a smaller batch=")
        original()

    def _preprocess_batch(self, original: Callable[[Any], Any], batch: Any) -> Any:
        self._trainer.accumulate += self._unknown
        return original(batch)

    def _optimizer_step(self, original: Callable[[], None]) -> None:
        trainer = self._trainer
        trainer.accumulate -= self._unknown
        self._unknown = 0
        self._stepped_at = self._batch
        original()

    def _handle_nan_recovery(self, original: Callable[[int], bool], epoch: int) -> bool:
        if original(epoch):
            raise UsageError(
                f"the loss of epoch {epoch + 1} is not finite. Ultralytics would take the weights "
                "of last.pt, which a run cannot repeat. Begin another run with a lower lr0="
            )
        return False

    def _close_dataloader_mosaic(self, original: Callable[[], None]) -> None:
        original()
        self._renew_loader()  # its workers have the data set as it was

    # Callbacks
    # ---------------------------------------------------------------------------------------

    def _on_pretrain_routine_end(self, _: Any) -> None:
        """Enter the run: all that is restored exists now."""
        trainer = self._trainer
        model = unwrap_model(trainer.model)
        own = {
            "model": model,
            "ema": trainer.ema.ema,
            "optimizer": trainer.optimizer,
            "scheduler": trainer.scheduler,
            "scaler": trainer.scaler,
            "trainer": self,
        }
        options: RunOptions = {"seed": trainer.args.seed, **self._options}
        self._begun = training = Training(
            self._path,
            merge_states(own, self._state),
            options,
            epochs=trainer.epochs,
            untried=self._untried,
        )
        training.require_more()
        loop = training.loop
        trainer.start_epoch = loop.epoch
        if (rows := loop.durations.get(_CSV)) is not None:
            disk.replace_with(trainer.csv, [rows.encode()])
        if not loop.goes_on:
            trainer.epoch, self._over = trainer.epochs - 1, True
            raise _OverError
        if loop.epoch and hasattr(model, "init_criterion"):  # its weights follow the epochs
            model.criterion = model.init_criterion()
            for _ in range(loop.epoch if hasattr(model.criterion, "update") else 0):
                model.criterion.update()
        _mix_any_images(getattr(trainer.train_loader.dataset, "transforms", None))
        self._renew_loader()
        training.replace(home, "TQDM", partial(self._bar, home.TQDM))

    def _on_train_epoch_start(self, trainer: Any) -> None:
        loop = self._training.loop
        self._scheduler = trainer.scheduler
        self._at, self._group = 0, 0
        if loop.in_epoch:
            self._at = loop.consumed()
            # it has made the step of this epoch
            trainer.scheduler = SimpleNamespace(step=lambda: None)
        loop.begin_epoch()

    def _on_train_batch_end(self, trainer: Any) -> None:
        stepped = self._stepped_at == self._batch
        trainer.accumulate -= self._unknown
        self._at += 1
        self._group += 1
        if stepped and self._at < len(self._loader) and not trainer.stop:
            taken, self._group = self._group, 0
            self._training.loop.step_done(taken)

    def _on_fit_epoch_end(self, trainer: Any) -> None:
        if self._over:  # of the last validation, behind the loop
            return
        self._over = trainer.stop
        training = self._training
        means = trainer.label_loss_items(trainer.tloss)
        training.run.log(**{**means, **trainer.metrics, **trainer.lr})
        training.loop.durations[_CSV] = trainer.csv.read_text()
        self._at = 0
        early = trainer.stop and trainer.epoch + 1 < trainer.epochs
        training.loop.end_epoch(self._group, last=early)

    # Batches
    # -----------------------------------------------------------------------------------------

    @property
    def _batch(self) -> int:
        """The number of the batch in progress, as the trainer counts them over all epochs."""
        return self._at + len(self._loader) * int(self._trainer.epoch)

    def _bar(self, original: Callable[..., Any], numbered: Any, total: int) -> Any:
        """Return the trainer's bar over the batches that remain."""
        del numbered
        self._trainer.scheduler = self._scheduler
        return original(enumerate(self._batches(), self._at), total=total, initial=self._at)

    def _renew_loader(self) -> None:
        """Take a loader like the trainer's, with the same random numbers for the same batch."""
        theirs = self._trainer.train_loader
        self._loader = copy.copy(theirs)
        seeded = SeededBatches(theirs.dataset, self._training.loop.seed)
        vars(self._loader).update(dataset=seeded, iterator=None)

    def _batches(self) -> Iterator[Any]:
        trainer = self._trainer
        if self._pending is not None:
            trainer.tloss, gradients = self._pending["mean"], self._pending["gradients"]
            for name, each in unwrap_model(trainer.model).named_parameters():
                each.grad = gradients.get(name)
            self._pending = None
        yield from self._training.loop.batches(self._loader)


def _class_of_trainer() -> Callable[..., Any]:
    """Return the class that the calling model takes by itself."""
    frame = sys._getframe(1)  # noqa: SLF001  the model is no argument of this call
    while not isinstance(model := frame.f_locals.get("self"), Model):
        if frame.f_back is None:
            raise UsageError("holdfast.ultralytics.Holdfast: give it to model.train(trainer=...)")
        frame = frame.f_back
    kind: Callable[..., Any] = model._smart_load("trainer")  # noqa: SLF001
    return kind


def _mix_any_images(transform: Any) -> None:
    """Let mosaics take any images: those that a worker has read last depend on what it did."""
    if hasattr(transform, "buffer_enabled"):
        transform.buffer_enabled = False
    inner = (*getattr(transform, "transforms", ()), getattr(transform, "pre_transform", None))
    for each in inner:
        if each is not None:
            _mix_any_images(each)


def _require_fit(trainer: Any) -> None:
    """Require a trainer that can be resumed exactly.

    Raises:
        UsageError: the training could not be exact, or was not tried.
    """
    args = trainer.args
    for refused, why in (
        (not args.exist_ok, "each start would write into another folder. Give exist_ok=True"),
        (args.resume, "Holdfast resumes by itself. Leave out resume="),
        (args.time, "with time= a clock decides on the epochs. Give epochs="),
        (trainer.batch_size < 1, "a batch size found by trial is not found again. Give the one"),
        (
            trainer.world_size > 1 or home.RANK != -1,
            "several processes were not tried. Give one device",
        ),
    ):
        if refused:
            raise UsageError(f"holdfast.ultralytics: {why}")
