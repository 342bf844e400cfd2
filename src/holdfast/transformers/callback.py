"""Holdfast: the callback of transformers' Trainer."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import wraps
from typing import Any, Unpack

from accelerate.data_loader import DataLoaderDispatcher
from accelerate.utils import DistributedType
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..errors import UsageError
from ..run.run import Run
from ..trainers.known import NAMES
from ..trainers.names import require
from ..trainers.training import RunOptions, ignores_own_checkpoint, require_one
from .walk import TrainerLoop

_KNOWN = "One process, or several with DDP or FSDP2, are known to be exact"
_PLAIN = {
    DistributedType.NO,
    *(
        getattr(DistributedType, name)
        for name in ("MULTI_CPU", "MULTI_GPU")
        if hasattr(DistributedType, name)
    ),
}


class Holdfast(TrainerCallback):  # type: ignore[misc]
    """Saves and resumes the training of a Trainer: `Trainer(..., callbacks=[Holdfast("runs/x")])`.

    A training that is killed, or stopped by a signal, goes on from its last save when the script
    runs again, and ends with the same bits. A finished one trains nothing: train() returns what it
    returned.

    Args:
        path: the run's directory.
        state: further objects of yours to save and restore, by name, as in `Run`.
        options: those of `Run`: keep, every, deadline, board and so on.

    Raises:
        UsageError: this transformers does not have what the callback wraps.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        state: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._untried = require("transformers", NAMES["transformers"])
        self._path, self._state, self._options = path, dict(state or {}), options
        self._walk: TrainerLoop | None = None

    @property
    def run(self) -> Run:
        """The run while it trains, for `run.vars` and metrics of your own.

        Raises:
            UsageError: no training is in progress.
        """
        if self._walk is None or self._walk.run is None:
            raise UsageError(
                "holdfast.transformers.Holdfast: "
                "its run exists from the first epoch to the last one's end"
            )
        return self._walk.run

    # Methods that the Trainer calls
    # -------------------------------------------------------------------------------------

    def on_init_end(self, *_: Any, **__: Any) -> None:
        """Let train() load no checkpoint of the Trainer's own into a run that an earlier attempt
        has begun.
        """
        trainer = _calling_trainer()[0]
        plain = trainer.train

        @wraps(plain)
        def train(
            resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
        ) -> Any:
            if resume_from_checkpoint and ignores_own_checkpoint(
                self._path, f"{resume_from_checkpoint=}"
            ):
                resume_from_checkpoint = None
            return plain(resume_from_checkpoint, *args, **kwargs)

        trainer.train = train

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the run around the loop that begins. It is entered when every callback has begun."""
        del state, control
        trainer, arguments = _calling_trainer()
        # a training that failed outside of the methods that tell the walk
        if self._walk is not None:
            self._walk.end_run(UsageError("train() began again before this training had ended"))
        require_one(trainer.callback_handler.callbacks, Holdfast)
        _require_fit(trainer, args, arguments, kwargs.get("train_dataloader"))
        options: RunOptions = {
            "seed": args.seed if args.data_seed is None else args.data_seed,
            **self._options,
        }
        self._walk = TrainerLoop(trainer, self._path, self._state, options, self._untried)

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        if self._walk is not None:
            self._walk.batch_done()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self._walk is not None:
            self._walk.batch_done()
            self._walk.due = "step"

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        if self._walk is not None:
            self._walk.due = "epoch"

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Log the trainer's numbers in the run, under their own names."""
        del args, state, control
        if self._walk is not None:
            self._walk.log(logs or {})


def _calling_trainer() -> tuple[Trainer, Mapping[str, Any]]:
    """Return the trainer whose train() is calling, and the arguments of its loop; a callback does
    not get them.
    """
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer):
            return trainer, frame.f_locals
        frame = frame.f_back  # type: ignore[assignment]
    raise UsageError(
        "holdfast.transformers.Holdfast is a callback "
        "of transformers.Trainer; nothing else calls it"
    )


def _why_not_parallel(trainer: Trainer) -> str:
    """Return why processes that share the work so cannot be resumed; empty if they can."""
    accelerator: Any = trainer.accelerator
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if trainer.is_deepspeed_enabled:
        return (
            "DeepSpeed's optimizer keeps master weights and moments in flat partitions, with a loss"
            " scaler that only DeepSpeed saves: a resume would lack them. Give fsdp=, with"
            " fsdp_config={'fsdp_version': 2}, in place of deepspeed="
        )
    if plugin is not None and getattr(plugin, "fsdp_version", 1) != 2:
        return (
            "FSDP1 flattens parameters, and a resume would lack their moments. Give"
            " fsdp_config={'fsdp_version': 2}, with accelerate 1.6 or newer"
        )
    config = getattr(accelerator.state, "parallelism_config", None)
    sizes = [getattr(config, f"{each}_size", None) for each in ("tp", "cp", "sp")]
    cuts = getattr(getattr(trainer.model, "config", None), "distributed_config", None)
    sizes += [getattr(cuts, f"{each}_size", None) for each in ("tp", "pp", "ep")]
    if any(size not in (None, 1) for size in sizes):
        return "tensor, context, pipeline and expert parallelism were not tried. " + _KNOWN
    if plugin is None and accelerator.distributed_type not in _PLAIN:
        return f"{accelerator.distributed_type} was not tried. " + _KNOWN
    return ""


def _require_fit(
    trainer: Trainer,
    args: TrainingArguments,
    arguments: Mapping[str, Any],
    loader: DataLoader[Any] | None,
) -> None:
    """Require a Trainer that can be resumed exactly.

    Raises:
        UsageError: the trainer is to do what cannot be exact beside us, or what was not tried.
    """
    accelerator = trainer.accelerator
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    ours = "Holdfast resumes by itself"
    reasons = (
        (
            arguments.get("resume_from_checkpoint"),
            f"{ours}: call train() without resume_from_checkpoint",
        ),
        (
            "state_dict" in vars(trainer.model),
            (
                "the model's state_dict() was replaced, "
                "and nothing could be restored from it. Leave that out"
            ),
        ),
        (
            args.enable_jit_checkpoint,
            f"{ours}, and saves on SIGTERM: leave out enable_jit_checkpoint",
        ),
        (
            arguments.get("trial"),
            "the trials of hyperparameter_search would share one run: train them one by one",
        ),
        (
            args.auto_find_batch_size,
            (
                "auto_find_batch_size: a batch size that is found by "
                "trial would not be found again. Give the one it found"
            ),
        ),
        (why := _why_not_parallel(trainer), why),
        (
            getattr(trainer.data_collator, "generator", None) is not None
            or getattr(trainer.data_collator, "seed", None) is not None,
            (
                "the collator's seed makes a generator of its own, "
                "which no checkpoint holds. Leave its seed out"
            ),
        ),
        (
            issubclass(type(loader), DataLoaderDispatcher) and accelerator.num_processes > 1,
            (
                "with dispatch_batches one process reads for all. "
                "Give accelerator_config={'dispatch_batches': False}"
            ),
        ),
        (
            hasattr(optimizer, "optimizer_dict"),
            (
                "a layer-wise optimizer is many, each stepped in "
                "the backward pass. Give optim= without 'layerwise'"
            ),
        ),
    )
    for refused, why in reasons:
        if refused:
            raise UsageError(f"holdfast.transformers: {why}")
