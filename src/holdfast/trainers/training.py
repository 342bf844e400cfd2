"""Training: a run around a trainer's loop. The callbacks of all frameworks use it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from .. import journal
from ..data.promise import UnprovenCode
from ..errors import UsageError
from ..mirror.options import Mirror, Place
from ..rules import Auto, Every, Rule, Whole
from ..run.loops import ADAPTER, Loop
from ..run.run import Run
from ..run.stop import Deadline
from ..run.weights import StartFrom
from ..settings import run_dir
from ..terminal import say

if TYPE_CHECKING:
    from ..track.options import TrackerOptions


class RunOptions(TypedDict, total=False):
    """The options of `Run` that every callback takes: all but `finished`. Code after a trainer's
    loop does not use names that the loop sets.
    """

    keep: Rule
    every: Every | Auto | None
    vars: Mapping[str, Any] | None
    start_from: str | os.PathLike[str] | StartFrom | None
    branch_from: str | os.PathLike[str] | None
    go_back: int | None
    overrides: Mapping[str, Mapping[str, Any]] | None
    allow_fresh: bool
    accept: Collection[str]
    probe: Callable[[], Any] | None
    deadline: Deadline | None
    hyperparameters: Mapping[str, Any] | None
    dataset: object
    note: str | None
    tracker: Callable[[str | None, int], str | None] | None
    types: Iterable[type]
    seed: int | None
    take_over: bool
    private: bool
    background: bool
    whole: Whole
    track: TrackerOptions | Iterable[TrackerOptions]
    board: bool | str | os.PathLike[str]
    mirror: Mirror
    without: Place | Collection[Place]
    drain: float
    stop_on_nan: bool
    signed: str | os.PathLike[str] | None


_finished: set[Path] = set()  # runs that this process has finished


class Training:
    """The run of one training, and the temporary changes to the trainer's objects.

    Enter it when the trainer's objects exist and before its first epoch: the state is restored
    then, in place. `untried`: the result of `names.require`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        state: Mapping[str, Any],
        options: RunOptions,
        *,
        epochs: int | range | None = None,
        steps: int | None = None,
        untried: UnprovenCode | None = None,
    ) -> None:
        self._changed = ExitStack()
        self.run = Run(path, state, **options)
        self.run.__enter__()
        try:
            self.loop: Loop = self.run.loop(epochs, steps)
            self.loop.note_untried(untried)
        except BaseException as error:
            self.run.__exit__(type(error), error, None)
            raise

    @property
    def path(self) -> Path:
        """The run's directory."""
        return Path(self.run.path)

    def require_more(self) -> None:
        """Require a run that this process has not finished.

        Raises:
            UsageError: this process has finished the run, so that another model would get its
                weights, and no step.
        """
        if not self.loop.goes_on and self.path.resolve() in _finished:
            error = UsageError(
                f"{self.run.path}: this process has finished this run, "
                "and another training would make no step: give "
                "it a path of its own, or more epochs or steps"
            )
            self.end_run(error)
            raise error

    def replace(self, owner: object, name: str, value: Any) -> None:
        """Set an attribute of a trainer's object until the run is left."""
        replace_attribute(self._changed, owner, name, value)

    def end_run(self, error: BaseException | None = None) -> None:
        """End the run, and undo `replace`. Without an error the state is saved; with one, nothing
        is saved.
        """
        self._changed.close()
        self.loop.leave(error)
        if error is None:
            _finished.add(self.path.resolve())


def newest_recorded(path: Path, event: str) -> journal.Event | None:
    """Return the newest event of that name that an adapter has recorded (`Loop.record`) in the
    run at `path`.
    """
    return next(all_recorded(path, event), None)


def all_recorded(path: Path, event: str) -> Iterator[journal.Event]:
    """Return all events of that name, the newest first."""
    return (found for log in reversed(journal.logs(path)) for found in log.newest(ADAPTER + event))


def ignores_own_checkpoint(path: str | os.PathLike[str], theirs: str) -> bool:
    """Return whether the trainer must not load `theirs`, its own checkpoint, because an earlier
    attempt of this run began without one.

    A script that looks for the trainer's newest checkpoint finds one in each attempt but the first.
    """
    begun = bool(journal.logs(run_dir(path)))
    if begun:
        say(f"{os.fspath(path)}: this run restores itself, and {theirs} is not loaded")
    return begun


def merge_states(own: Mapping[str, Any], users: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects that the run tracks: the trainer's own, and those that the user gave as
    `state`.

    Raises:
        UsageError: both have an object of the same name.
    """
    if taken := own.keys() & users.keys():
        raise UsageError(f"state: the name {min(taken)!r} is taken by the trainer's own objects")
    return {**own, **users}


def require_one(callbacks: Iterable[Any], kind: type) -> None:
    """Require that the trainer has a single callback of Holdfast's.

    Raises:
        UsageError: the trainer has several of our callbacks.
    """
    if sum(isinstance(each, kind) for each in callbacks) > 1:
        raise UsageError(
            f"one trainer has one {kind.__module__}.{kind.__qualname__}; remove the others"
        )


def end_run_on_error(
    around: Callable[..., Any], original: Callable[..., Any], leave: Callable[[BaseException], None]
) -> Callable[..., Any]:
    """Return a function that calls `around` with `original` as an argument. An error in either ends
    the run.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return around(original, *args, **kwargs)
        except BaseException as error:
            leave(error)
            raise

    return call


def replace_attribute(changed: ExitStack, owner: object, name: str, value: Any) -> None:
    """Set an attribute of a trainer's object, or of its module, until `changed` is closed.

    If the program has set another one meanwhile, that one stays.
    """

    def now() -> Any:
        return vars(owner)[name] if name in vars(owner) else getattr(owner, name, None)

    had = name in vars(owner) or isinstance(
        inspect.getattr_static(type(owner), name, None), property
    )
    before = now()
    setattr(owner, name, value)

    def undo() -> None:
        if now() is not value:
            return
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)

    changed.callback(undo)
