"""Position: where a run is, between its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..errors import Damaged, Mismatch

_LATER = ("first_epoch",)  # fields that older checkpoints lack, and that are written only when they are not as in those


@dataclass
class Position:
    """Steps done, the epoch in progress, and how far each of its loaders has gone."""

    step: int = 0
    epoch: int = 0  # counted from 0, or from the start of the range that run.epochs() was given
    phase: str = "step"  # of the last safe point
    in_epoch: bool = False  # whether the body of `epoch` has begun
    epoch_began: int = 0  # the step at which it did
    current: str | None = None  # the loader in progress
    loaders: dict[str, Any] = field(default_factory=dict)  # name -> {"consumed", "done"} in this epoch
    feeds: dict[str, Any] = field(default_factory=dict)  # name -> where its feed was last, whichever the epoch
    targets: dict[str, int] = field(default_factory=dict)  # what epochs() and steps() were asked for
    left: dict[str, int] = field(default_factory=dict)  # those that `break` ended, with what they were asked for
    went_back: list[int] = field(default_factory=list)
    first_epoch: int = 0

    def state_dict(self) -> dict[str, Any]:
        stored = asdict(self)
        for name in _LATER:
            if stored[name] == getattr(type(self), name):
                del stored[name]
        return stored

    @classmethod
    def of(cls, stored: Any) -> Position:
        names = {entry.name for entry in fields(cls)}
        if not isinstance(stored, Mapping) or not names - set(_LATER) <= set(stored) <= names:
            raise Damaged("the checkpoint's position is not one that Holdfast writes")
        return cls(**stored)

    def begin_epochs(self, first: int) -> None:
        """The epochs count from `first`.

        Raises:
            Mismatch: those that are done were counted from another one.
        """
        if "epochs" not in self.targets and not self.in_epoch:
            self.first_epoch = self.epoch = first
        if first != self.first_epoch:
            was = self.first_epoch
            raise Mismatch(
                f"run.epochs() begins with epoch {first}, and this run began with epoch {was}: write "
                + (f"run.epochs(range({was}, total))" if was else "run.epochs(total)")
            )

    def finished(self) -> bool:
        """Whether each loop that was begun has reached its total, or was left: nothing is to do, as far as is known."""
        done = {"steps": self.step, "epochs": self.epoch, "batches": int(self.phase == "end")}
        return bool(self.targets) and all(
            done.get(kind, 0) >= total or kind in self.left for kind, total in self.targets.items()
        )

    def consumed(self, name: str) -> int:
        """Batches of the loader `name` that lie behind, in this epoch."""
        return int(self.loaders.get(name, {}).get("consumed", 0))

    def begin_epoch(self) -> None:
        self.in_epoch, self.epoch_began = True, self.step
        self.current, self.loaders = None, {}

    def end_epoch(self) -> None:
        """One epoch further. One whose body made no step of its own counts as one step itself."""
        if self.step == self.epoch_began:
            self.step += 1
        self.epoch += 1
        self.in_epoch, self.current, self.loaders = False, None, {}
