"""TrainerState: a trainer's counters and other state besides model, optimizers and schedulers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch

from ..terminal import say
from ..trainers.attributes import PlainAttributes, restored_gradient
from . import framework, results
from .attributes import attributes_of
from .checkpoints import CheckpointFiles, with_directory, without_directory
from .logs import LoggerStates

# Attributes of Lightning's own callbacks that their state_dict() or load_state_dict() leaves out.
_LEFT_OUT = {
    "ModelCheckpoint": (
        "current_score",
        "_last_global_step_saved",
        "_last_checkpoint_saved",
        "_defer_save_until_validation",
    ),
    "WeightAveraging": ("_latest_update_epoch",),
}
_RELOADED = "_last_train_dl_reload_epoch", "_last_val_dl_reload_epoch"


class TrainerState:
    """The state of a trainer that no other tracked object holds, as `state_dict()` and
    `load_state_dict()`.

    Lightning changes some of it again between the restore and the first step. So the restored state
    is kept until then, and can be restored again.
    """

    def __init__(self, trainer: Any, logs: LoggerStates) -> None:
        self.restored: dict[str, Any] = {}
        self._trainer, self._logs, self.files = trainer, logs, CheckpointFiles(trainer)
        self._fresh = False  # whether nothing has changed since the restore
        self._attributes: dict[str, PlainAttributes] = attributes_of(
            trainer, _callbacks_by_key(trainer)
        )

    def state_dict(self) -> dict[str, Any]:
        trainer, loops = self._trainer, self._trainer.fit_loop
        validation, connector = loops.epoch_loop.val_loop, trainer._logger_connector
        loggers = self.restored["loggers"] if self._fresh else self._logs.state()
        files = self.restored["checkpoints"] if self._fresh else self.files.names()
        found = {
            "counters": {name: progress.state_dict() for name, progress in _counters(trainer)},
            "stepped": loops.epoch_loop._batches_that_stepped,
            "limits": {"max_epochs": trainer.max_epochs, "max_steps": trainer.max_steps},
            "should_stop": self.restored["should_stop"] if self._fresh else trainer.should_stop,
            "reloaded": [
                _finite_epoch(getattr(loop, name))
                for loop, name in zip((loops, validation), _RELOADED, strict=True)
            ],
            "validation": {
                "set_up": validation._combined_loader is not None,
                "has_run": validation._has_run,
                "seen": dict(validation._seen_batches_per_dataloader),
            },
            "metrics": {
                name: dict(getattr(connector, f"_{name}_metrics"))
                for name in ("callback", "progress_bar")
            },
            "logged": {"metrics": dict(connector._logged_metrics), "hook": connector._current_fx},
            "first_batch": connector._first_loop_iter,
            "results": results.capture(loops.epoch_loop._results),
            "torchmetrics": results.capture_metrics(trainer.lightning_module),
            "callbacks": {
                key: _callback_state(callback)
                for key, callback in _callbacks_by_key(trainer).items()
            },
            "attributes": {key: each.changed() for key, each in self._attributes.items()},
            "gradients": self._gradients(),
            "frozen": [
                name
                for name, each in trainer.lightning_module.named_parameters()
                if not each.requires_grad
            ],
            "resting": [
                name for name, each in trainer.lightning_module.named_modules() if not each.training
            ],
            "hooks": self._hook_entries(),
            "precision": trainer.precision_plugin.state_dict(),
            "loggers": loggers,
            "checkpoints": files,
        }
        return {name: _copy_numbers(value) for name, value in found.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self._fresh:
            self._warn_of_lost_state(state)
        self.restored, self._fresh = state, True
        trainer, loops = self._trainer, self._trainer.fit_loop
        validation, connector = loops.epoch_loop.val_loop, trainer._logger_connector
        for name, progress in _counters(trainer):
            progress.load_state_dict(deepcopy(state["counters"][name]))
        loops.epoch_loop._batches_that_stepped = state["stepped"]
        trainer.should_stop = state["should_stop"] and not self.limit_was_raised()
        for loop, name, epoch in zip(
            (loops, validation), _RELOADED, state["reloaded"], strict=True
        ):
            setattr(loop, name, float("-inf") if epoch is None else epoch)
        validation._has_run = state["validation"]["has_run"]
        validation._seen_batches_per_dataloader = defaultdict(int, state["validation"]["seen"])
        for name, metrics in state["metrics"].items():
            setattr(connector, f"_{name}_metrics", dict(metrics))
        connector._logged_metrics, connector._current_fx = (
            dict(state["logged"]["metrics"]),
            state["logged"]["hook"],
        )
        connector._first_loop_iter = state["first_batch"]
        results.restore(trainer, state["results"])
        results.restore_metrics(trainer.lightning_module, state["torchmetrics"])
        for key, callback in _callbacks_by_key(trainer).items():
            _restore_callback(callback, state["callbacks"].get(key))
        for key, each in self._attributes.items():
            each.restore(state["attributes"].get(key, {}))
        self._restore_module(state)
        if state["precision"]:
            trainer.precision_plugin.load_state_dict(state["precision"])

    def restore_again(self) -> None:
        """Undo changes that Lightning and the hooks at the training's beginning made since the
        restore.
        """
        if not self._fresh:
            return
        trainer, validation = self._trainer, self._trainer.fit_loop.epoch_loop.val_loop
        if self.restored["validation"]["set_up"] and validation._combined_loader is None:
            trainer.validating = True
            validation.setup_data()
            trainer.training = True
        self.load_state_dict(self.restored)

    def note_step(self) -> None:
        """Record that a step was made since the restore."""
        self._fresh, self.restored = False, {}

    def limit_was_raised(self) -> bool:
        """Return whether the script now allows more epochs or steps than it did at the save."""
        limits = (
            (before, getattr(self._trainer, name))
            for name, before in self.restored["limits"].items()
        )
        return any(before != -1 and (now == -1 or now > before) for before, now in limits)

    def _warn_of_lost_state(self, state: dict[str, Any]) -> None:
        for key in state["callbacks"].keys() - _callbacks_by_key(self._trainer).keys():
            if any(state["callbacks"][key].values()) or state["attributes"].get(f"callback {key}"):
                say(
                    f"the checkpoint has the state of a callback {key}, "
                    "which the trainer has not now: it is left out"
                )

    def _gradients(self) -> dict[str, Any]:
        """Return the gradients if the training step itself decides when they are used up."""
        module = self._trainer.lightning_module
        if module.automatic_optimization:
            return {}
        return {
            name: each.grad for name, each in module.named_parameters() if each.grad is not None
        }

    def _restore_module(self, state: dict[str, Any]) -> None:
        module, frozen, resting = (
            self._trainer.lightning_module,
            {*state["frozen"]},
            {*state["resting"]},
        )
        for name, parameter in module.named_parameters():
            if parameter.requires_grad == (name in frozen):
                parameter.requires_grad_(name not in frozen)
            if not module.automatic_optimization:
                gradient = state["gradients"].get(name)
                parameter.grad = (
                    None if gradient is None else restored_gradient(parameter, gradient)
                )
        for name, each in module.named_modules():
            each.training = name not in resting
        if state["hooks"]:
            module.on_load_checkpoint(
                {**_lightning_checkpoint(self._trainer), **deepcopy(state["hooks"])}
            )

    def _hook_entries(self) -> dict[str, Any]:
        """Return the entries that the module's own on_save_checkpoint adds to a checkpoint."""
        module = self._trainer.lightning_module
        helpers = framework.module_of(self._trainer, "utilities.model_helpers")
        if not helpers.is_overridden("on_save_checkpoint", module):
            return {}
        document = _lightning_checkpoint(self._trainer)
        known = set(document)
        module.on_save_checkpoint(document)
        return {name: value for name, value in document.items() if name not in known}


def _copy_numbers(value: Any) -> Any:
    """Return `value` with a copy of each number that is a tensor: callbacks keep the very objects
    that were logged.
    """
    if type(value) is dict:
        return {key: _copy_numbers(each) for key, each in value.items()}
    if type(value) is list:
        return [_copy_numbers(each) for each in value]
    return (
        value.detach().clone() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    )


def _lightning_checkpoint(trainer: Any) -> dict[str, Any]:
    """Return the entries of Lightning's own checkpoint, for hooks that read them."""
    return {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "state_dict": trainer.lightning_module.state_dict(),
        "optimizer_states": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "lr_schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "callbacks": {},
        "loops": {},
    }


def _counters(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the counters of the loops of `fit`, by their paths."""
    progress = framework.module_of(trainer, "loops.progress")._BaseProgress
    kind = framework.module_of(trainer, "loops.loop")._Loop

    def walk_loop(loop: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, value in vars(loop).items():
            if isinstance(value, progress):
                yield f"{path}{name}", value
            elif isinstance(value, kind):
                yield from walk_loop(value, f"{path}{name}.")

    yield from walk_loop(trainer.fit_loop, "")


def _callbacks_by_key(trainer: Any) -> dict[str, Any]:
    """Return the callbacks by Lightning's keys for their states, without Holdfast's own."""
    found: dict[str, Any] = {}
    for callback in trainer.callbacks:
        if any(kind.__module__ == f"{__package__}.callback" for kind in type(callback).__mro__):
            continue
        key = callback.state_key
        while key in found:
            key += "+"
        found[key] = callback
    return found


def _callback_state(callback: Any) -> dict[str, Any]:
    more = {
        name: getattr(callback, name)
        for name in _unsaved_names(callback)
        if hasattr(callback, name)
    }
    found: dict[str, Any] = without_directory(
        {"state": callback.state_dict(), "more": more}, callback
    )
    return found


def _restore_callback(callback: Any, stored: dict[str, Any] | None) -> None:
    if stored is None:
        return
    stored = with_directory(stored, callback)
    if stored["state"]:
        callback.load_state_dict(deepcopy(stored["state"]))
    for name, value in stored["more"].items():
        setattr(callback, name, value)


def _unsaved_names(callback: Any) -> tuple[str, ...]:
    return next(
        (_LEFT_OUT[kind.__name__] for kind in type(callback).__mro__ if kind.__name__ in _LEFT_OUT),
        (),
    )


def _finite_epoch(epoch: float) -> int | None:
    """Return an epoch, or None for Lightning's minus infinity."""
    return None if epoch == float("-inf") else int(epoch)
