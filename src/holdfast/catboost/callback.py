"""Holdfast: the callback that makes a training of CatBoost save, stop and resume between two
iterations.

CatBoost continues its own snapshot exactly. It writes one before an iteration if
`snapshot_interval` seconds have passed. A safe point of the run is where it has just written one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

import catboost
import catboost.core

from .. import disk
from ..errors import UsageError
from ..state import rng
from ..stateful.tracked import digest_state
from ..trainers.known import NAMES
from ..trainers.names import require
from ..trainers.rounds import ONCE, OtherCallbacks
from ..trainers.training import (
    RunOptions,
    Training,
    merge_states,
    require_one,
)

_SECONDS = 10  # between two snapshots, without `snapshot_interval`
_SNAPSHOT = "snapshot"  # among the durations, which no drill compares: it has times in it


class Holdfast:
    """Saves a training to the run at `path`, stops it in time, and continues it to the same trees
    when it is started again.

        model.fit(x, y, callbacks=[Holdfast("runs/trees")])

    A safe point is where CatBoost has written its snapshot: with `fit(snapshot_interval=0)` behind
    each iteration, else every ten seconds. `state` names further objects of yours that change; the
    options are those of `Run`.

    Raises:
        UsageError: CatBoost lacks what this wraps, or the training is on a GPU.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        state: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._untried = require("catboost", NAMES["catboost"])
        self._path, self._given, self._options = path, dict(state or {}), options
        self._begun: Training | None = None
        self._error: BaseException | None = None
        self._random: Mapping[str, str] = {}  # of the global generators, behind the last iteration
        self._ended = False  # whether another callback has ended the training
        self._metrics: Mapping[str, list[float]] = {}  # of all iterations
        self._iterations = 0
        self._seen: tuple[int, int] | None = None  # of the snapshot

    def after_iteration(self, info: Any) -> bool:
        """Mark a safe point, and call the other callbacks. False ends the training."""
        try:
            self._metrics, self._iterations = _columns(info.metrics), info.iteration
            if self._random and digest_state(rng.capture()).of != self._random:
                raise UsageError(
                    "holdfast.catboost: an objective or a metric draws random numbers, "
                    "which a resume would draw otherwise: let it use a generator of the iteration"
                )
            if (found := self._look()) != self._seen:  # it has the iterations before this one
                self._seen = found
                self._count_up_to(info.iteration - 1)
            self._ended = not all(each.after_iteration(info) for each in self._others_here)
            self._random = digest_state(rng.capture()).of
        except BaseException as error:
            self._error = error
        return self._error is None and not self._ended

    def train(self, model: Any, *given: Any) -> None:
        """Train, from the stored snapshot on."""
        pool, tests, parameters, clears, before = given
        if self._begun is not None:
            raise UsageError(ONCE)
        if str(parameters.get("task_type", "CPU")).upper() != "CPU":
            raise UsageError("holdfast.catboost: CatBoost calls no callbacks on a GPU")
        callbacks = parameters["callbacks"]
        require_one(callbacks._callbacks, Holdfast)  # noqa: SLF001
        self._others_here = [each for each in callbacks._callbacks if each is not self]  # noqa: SLF001
        callbacks._callbacks = [self]  # noqa: SLF001
        self._others = OtherCallbacks(self._others_here)
        self._begun = training = Training(
            self._path,
            merge_states({"booster": self}, self._given),
            self._options,
            steps=parameters.get("iterations", 1000),
            untried=self._untried,
        )
        try:
            training.require_more()
            folder = training.path / "catboost"
            self._file = (folder / "snapshot").absolute()
            disk.make_dirs(folder)
            if found := training.loop.durations.get(_SNAPSHOT):
                disk.replace_with(self._file, [found["file"]])
                self._others.restore(found["callbacks"])
                self._iterations, self._metrics = found["iterations"], found["metrics"]
            elif self._look():
                disk.remove_file(self._file)
            self._seen = self._look()
            ours = {"save_snapshot": True, "snapshot_file": str(self._file)}
            if parameters.get("allow_writing_files") is False:
                ours |= {"allow_writing_files": True, "train_dir": str(folder)}
            if self._ended:
                ours["iterations"] = self._iterations
            training.loop.settle()
            interval = {"snapshot_interval": _SECONDS}
            _original(model, pool, tests, {**interval, **parameters, **ours}, clears, before)
            if self._error is None:
                self._count_up_to(self._iterations)
        except BaseException as error:
            self._error = self._error or error
        training.end_run(self._error)
        if self._error is not None:
            raise self._error

    def _count_up_to(self, iterations: int) -> None:
        """Mark the safe points of the iterations that the snapshot has."""
        if (training := self._begun) is not None:
            training.loop.durations[_SNAPSHOT] = {
                "file": self._file.read_bytes(),
                "callbacks": self._others.changed(),
                "iterations": self._iterations,
                "metrics": self._metrics,
            }
            while (step := training.loop.step) < iterations:
                found = self._metrics.items()
                whole = {name: each for name, each in found if len(each) == self._iterations}
                training.run.log(**{name: each[step] for name, each in whole.items()})
                training.loop.step_done()

    def _look(self) -> tuple[int, int] | None:
        """Return what changes when CatBoost writes its snapshot."""
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino

    def state_dict(self) -> Mapping[str, Any]:
        step = self._begun.loop.step if self._begun else 0
        metrics = {name: values[:step] for name, values in self._metrics.items()}
        return {"metrics": metrics, "ended": self._ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ended = state["ended"]


def _columns(metrics: Mapping[str, Mapping[str, list[float]]]) -> dict[str, list[float]]:
    return {
        f"{data}-{name}": each for data, found in metrics.items() for name, each in found.items()
    }


_original = catboost.CatBoost._train  # noqa: SLF001  nothing public is called before it


def _train(model: Any, *given: Any) -> None:
    callbacks = getattr(given[2].get("callbacks"), "_callbacks", ())
    ours = next((each for each in callbacks if isinstance(each, Holdfast)), None)
    if ours is None:
        _original(model, *given)
    else:
        ours.train(model, *given)


catboost.CatBoost._train = _train  # noqa: SLF001
