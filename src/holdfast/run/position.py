"""Position: where a run is, between its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..errors import Damaged


@dataclass
class Position:
    """Steps done, the epoch in progress, and how far each of its loaders has gone."""

    step: int = 0
    epoch: int = 0
    phase: str = "step"  # of the last safe point
    in_epoch: bool = False  # whether the body of `epoch` has begun
    epoch_began: int = 0  # the step at which it did
    current: str | None = None  # the loader in progress
    loaders: dict[str, Any] = field(default_factory=dict)  # name -> {"consumed", "done"} in this epoch
    feeds: dict[str, Any] = field(default_factory=dict)  # name -> where its feed was last, whichever the epoch
    targets: dict[str, int] = field(default_factory=dict)  # what epochs() and steps() were asked for
    left: dict[str, int] = field(default_factory=dict)  # those that `break` ended, with what they were asked for
    went_back: list[int] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, stored: Any) -> Position:
        names = {entry.name for entry in fields(cls)}
        if not isinstance(stored, Mapping) or set(stored) != names:
            raise Damaged("the checkpoint's position is not one that Holdfast writes")
        return cls(**stored)

    def begin_epoch(self) -> None:
        self.in_epoch, self.epoch_began = True, self.step
        self.current, self.loaders = None, {}

    def end_epoch(self) -> None:
        """One epoch further. One whose body made no step of its own counts as one step itself."""
        if self.step == self.epoch_began:
            self.step += 1
        self.epoch += 1
        self.in_epoch, self.current, self.loaders = False, None, {}
