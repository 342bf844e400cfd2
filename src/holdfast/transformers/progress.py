"""TrainerProgress: a Trainer's state besides its model, optimizer and scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transformers import Trainer
from transformers.trainer_callback import ExportableState

from ..errors import Mismatch
from ..run.metrics import is_timing
from ..terminal import say
from ..trainers.attributes import PlainAttributes, names_set_by, restored_gradient

_STATE = (  # of TrainerState; its other fields come from the arguments
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
_TRAINER = (  # sums of the Trainer itself, and of TRL's trainers
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "current_flos",
    "_total_train_tokens",
)
_SUMS = "_metrics"  # TRL: {"train": {name: values since the last log}, "eval": ...}
_LOG = "log"


class TrainerProgress:
    """The state of a Trainer: its TrainerState with the whole log history, the running loss, its
    callbacks' state.

    Durations in the log history are kept apart, in `durations`: they differ in any two runs.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.durations: dict[str, Any] = {}
        self.restored = False
        # the persistent evaluation loaders that the training has begun
        self.evaluated: set[str] = set()
        self._attributes: dict[str, PlainAttributes] = {}
        self._steps = 0  # of the checkpoint's whole training
        self._epochs = 0

    def note_attributes(self) -> None:
        """Record the attributes of the user's own classes as they are before the first step."""
        own = {"the trainer": self._trainer} | dict(
            self._callbacks_of_kind(lambda each: not isinstance(each, ExportableState))
        )
        for name, each in own.items():
            theirs = [
                kind
                for kind in type(each).__mro__
                if kind.__module__.partition(".")[0] == "transformers"
            ]
            ours = any(kind.__module__ == f"{__package__}.callback" for kind in type(each).__mro__)
            if type(each) not in theirs and not ours:
                known = {_SUMS, *_TRAINER} if each is self._trainer else set()
                self._attributes[name] = PlainAttributes(
                    each, known | {set_ for kind in theirs for set_ in names_set_by(kind)}
                )

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        sums = getattr(trainer, _SUMS, None)
        return {
            "state": {name: getattr(trainer.state, name) for name in _STATE},
            "history": [_without_timings(entry) for entry in trainer.state.log_history],
            "trainer": {
                name: getattr(trainer, name) for name in _TRAINER if hasattr(trainer, name)
            },
            "loss": trainer._tr_loss,  # noqa: SLF001
            "sums": _plain(sums) if isinstance(sums, dict) else None,
            "callbacks": {
                name: dict(callback.state()["attributes"]) for name, callback in self._callbacks()
            },
            "evaluated": sorted(self.evaluated),
            "attributes": {
                name: found for name, each in self._attributes.items() if (found := each.changed())
            },
            "limits": [trainer.state.max_steps, trainer.state.num_train_epochs],
            # after an evaluation it is not, until the next step
            "training": trainer.model.training,
            "accumulate": trainer.args.gradient_accumulation_steps,
            "gradients": {
                name: each.grad
                for name, each in trainer.model.named_parameters()
                if each.grad is not None
            },
        }

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        trainer = self._trainer
        self.restored = True
        self._steps, self._epochs = stored["limits"]
        for name, found in stored["attributes"].items():
            if name in self._attributes:
                self._attributes[name].restore(found)
            else:
                say(
                    f"the checkpoint has attributes of {name}, "
                    "which the trainer has not now: they are left out"
                )
        self.accumulate = stored["accumulate"]
        self.evaluated = set(stored["evaluated"])
        for name in _STATE:
            setattr(trainer.state, name, stored["state"][name])
        trainer.state.log_history = [dict(entry) for entry in stored["history"]]
        self.fill_timings()
        for name in _TRAINER:
            if hasattr(trainer, name) and name in stored["trainer"]:
                setattr(trainer, name, stored["trainer"][name])
        trainer._tr_loss = stored["loss"].to(trainer.args.device, copy=True)  # noqa: SLF001
        for kind, values in (stored["sums"] or {}).items():
            getattr(trainer, _SUMS)[kind].clear()
            getattr(trainer, _SUMS)[kind].update(
                {name: list(each) for name, each in values.items()}
            )
        for name, callback in self._callbacks():
            for attribute in (
                callback.state()["attributes"].keys() & stored["callbacks"].get(name, {}).keys()
            ):
                setattr(callback, attribute, stored["callbacks"][name][attribute])
        if trainer.model.training != stored["training"]:
            trainer.model_wrapped.train(stored["training"])
        for name, parameter in trainer.model.named_parameters():
            grad = stored["gradients"].get(name)
            parameter.grad = None if grad is None else restored_gradient(parameter, grad)

    def require_same_groups(self) -> None:
        """Require the same gradient accumulation in the middle of an epoch.

        Raises:
            Mismatch: the training goes on in the middle of an epoch whose batches were grouped
                otherwise.
        """
        now = self._trainer.args.gradient_accumulation_steps
        if self.restored and self.accumulate != now:
            raise Mismatch(
                f"gradient_accumulation_steps was {self.accumulate} and is {now}: "
                "in the middle of an epoch its groups "
                "of batches are fixed. End the epoch with the former number"
            )

    def require_same_epochs(self) -> None:
        """Require epochs that are not shorter than before.

        Raises:
            Mismatch: the epochs are shorter now, so that the training would end without its last
                ones.
        """
        state = self._trainer.state
        shorter = (
            self.restored and state.max_steps * self._epochs < self._steps * state.num_train_epochs
        )
        if (
            shorter
            and state.max_steps <= state.global_step < self._steps
            and self._trainer.args.max_steps <= 0
        ):
            raise Mismatch(
                f"{state.global_step} of {self._steps} steps are done, "
                f"and the training has {state.max_steps} now: its "
                "epochs have fewer steps than before (another batch size, "
                "or other data), and would not all be "
                "trained. Go on as before, or give TrainingArguments(max_steps=...)"
            )

    def note_timings(self) -> None:
        """Keep the durations of the newest entry of the log history apart."""
        history = self._trainer.state.log_history
        if history and (
            found := {name: value for name, value in history[-1].items() if is_timing(name)}
        ):
            self.durations.setdefault(_LOG, {})[str(len(history) - 1)] = found

    def fill_timings(self) -> None:
        """Write the durations back into the restored log history."""
        history = self._trainer.state.log_history
        for place, found in self.durations.get(_LOG, {}).items():
            if int(place) < len(history):
                history[int(place)].update(found)

    def _callbacks(self) -> Iterator[tuple[str, ExportableState]]:
        """Yield the callbacks that export a state, with their names."""
        return self._callbacks_of_kind(lambda each: isinstance(each, ExportableState))

    def _callbacks_of_kind(self, wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
        """Yield the callbacks of the kind `wanted`, by names that are the same in each attempt."""
        seen: dict[str, int] = {}
        for callback in filter(wanted, self._trainer.callback_handler.callbacks):
            kind = type(callback).__name__
            seen[kind] = seen.get(kind, 0) + 1
            yield kind if seen[kind] == 1 else f"{kind} {seen[kind]}", callback


def _without_timings(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if is_timing(name) else value for name, value in entry.items()}


def _plain(sums: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    return {
        kind: {name: list(each) for name, each in values.items()} for kind, values in sums.items()
    }
