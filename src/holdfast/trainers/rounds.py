"""The rounds of a booster as the steps of a run. The adapters of boosting libraries use it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FrameType
from typing import Any

from ..errors import Mismatch, UsageError
from ..terminal import say, warn
from .attributes import PlainAttributes
from .known import NAMES
from .names import require
from .training import RunOptions, Training, end_run_on_error, merge_states

ONCE = "this Holdfast was given to a training before: each needs its own, with its own path"


class Rounds:
    """The rounds of one training, each a step of its run.

    After a resume the library's own loop walks all rounds again. The first `done` of them are
    skipped, because the model has been restored; where the library cannot continue a model exactly,
    they are trained again, and the model must then have the bytes that were stored.

    `capture` returns what a round leaves behind; "model" in it holds the bytes that the library
    writes.
    """

    def __init__(
        self,
        library: str,
        capture: Callable[[], dict[str, Any]],
        path: str | os.PathLike[str],
        state: Mapping[str, Any] | None,
        options: RunOptions,
    ) -> None:
        self._untried = require(library, NAMES[library])
        self._path, self._given, self._options = path, state or {}, options
        self.stored: Mapping[str, Any] = {}  # of the checkpoint that was restored
        self.done = 0  # number of rounds that the checkpoint has
        self.walked = 0  # number of rounds that the library's loop has walked here
        self.stopped: Any = None  # with what a callback has ended the training
        self._capture, self._again = capture, ""
        self._begun: Training | None = None

    @property
    def training(self) -> Training:
        if self._begun is None:
            raise UsageError("a Holdfast belongs into callbacks=[...] of a training")
        return self._begun

    @property
    def begun(self) -> bool:
        return self._begun is not None

    @property
    def ended(self) -> bool:
        """Whether no round is left to train."""
        return self.walked >= self.done and (
            self.stopped is not None or not self.training.loop.goes_on
        )

    def begin(self, total: int) -> None:
        """Enter the run, which restores `stored`.

        Raises:
            UsageError: a training has begun with this.
        """
        if self._begun is not None:
            raise UsageError(ONCE)
        self._begun = Training(
            self._path,
            merge_states({"booster": self}, self._given),
            self._options,
            steps=total,
            untried=self._untried,
        )
        self._begun.require_more()
        self.done = self.stored.get("rounds", 0)

    def train_again(self, why: str) -> None:
        """Train the stored rounds again: `why` the library cannot continue them exactly."""
        self._again = why
        if self.done:
            again = "rounds are trained again, and compared with the checkpoint"
            say(f"{self.training.path}: {why}: the first {self.done} {again}")

    def say_first(self, line: str) -> None:
        """Print a line at the first start of the run."""
        if not self.done:
            say(f"{self.training.path}: {line}")

    def tell_changed(self, here: Mapping[str, str], which: str) -> None:
        """Warn of the parameters that differ from those of the checkpoint; `which` value counts."""
        before = self.stored["parameters"]
        for name in sorted(before.keys() | here.keys()):
            if (was := before.get(name)) != (now := here.get(name)):
                warn(f"{self.training.path}: {name} is {now} here, and {was} before: {which}")

    def skips(self, number: int) -> bool:
        """Return whether round `number` is neither trained nor shown to callbacks."""
        return number < self.done and not self._again

    def end(self, number: int, metrics: Mapping[str, float], stopped: Any = None) -> None:
        """Mark the end of round `number`: a safe point, unless the checkpoint has it already.

        Raises:
            Mismatch: the rounds that were trained again have made another model.
        """
        self.walked = number + 1
        if self.walked < self.done:
            return
        if self.walked == self.done:
            if self._again and self._capture()["model"] != self.stored["model"]:
                raise Mismatch(
                    f"{self.training.path}: the first {self.done} rounds, trained again, make "
                    "another model than the checkpoint has: the data, the parameters, the library "
                    "or the number of threads have changed"
                )
            return
        self.stopped = stopped
        self.training.run.log(**metrics)
        self.training.loop.step_done()

    def guarded(self, function: Callable[..., Any], original: Callable[..., Any]) -> Any:
        """Return `function` with `original` as its first argument; an error in it ends the run."""
        return end_run_on_error(function, original, self._leave)

    def _leave(self, error: BaseException) -> None:
        if self._begun is not None:
            self._begun.end_run(error)

    def state_dict(self) -> Mapping[str, Any]:
        if self._begun is None or self.walked < self.done:
            return self.stored
        return {**self._capture(), "rounds": self.walked, "stopped": self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.stored = state
        self.stopped = state.get("stopped")


class OtherCallbacks:
    """The plain attributes of the other callbacks of a training, which it has changed."""

    def __init__(self, callbacks: Iterable[object]) -> None:
        self._of = {
            f"{place} {type(each).__name__}": PlainAttributes(each)
            for place, each in enumerate(callbacks)
            if hasattr(each, "__dict__")
        }

    def changed(self) -> dict[str, Any]:
        return {name: found for name, each in self._of.items() if (found := each.changed())}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Restore them.

        Raises:
            Mismatch: a callback of the checkpoint is not there.
        """
        if missing := stored.keys() - self._of.keys():
            raise Mismatch(f"callbacks: {min(missing)!r} of the checkpoint is not there")
        for name, attributes in stored.items():
            self._of[name].restore(attributes)


def frame_of(code: CodeType) -> FrameType | None:
    """Return the innermost frame that runs `code`."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the only way to a caller's frame
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame
