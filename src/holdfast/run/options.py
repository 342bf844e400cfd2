"""Options: the arguments of a run, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import msgspec

from .. import settings
from ..data.advice import DATA
from ..data.feed import MOVES
from ..errors import UsageError
from ..mirror.options import MirrorOptions
from ..ranks import ALONE, Ranks
from ..rules import Auto, Every, Rule, Whole
from ..state.validation import is_printable_number
from ..store.signing import Signer
from ..store.store import Store
from .stop import Deadline
from .weights import StartFrom

if TYPE_CHECKING:
    from ..track.options import TrackerOptions

LINKED = 0.5  # part of a site's days until deletion: older files are written anew instead of linked


def parse_seed(given: SupportsIndex | None) -> int | None:
    """Return a seed as the plain number that a checkpoint keeps; NumPy's whole numbers are no plain
    ones.

    Raises:
        UsageError: it is none, or one that no reader would take.
    """
    try:
        seed = None if given is None else index(given)
    except TypeError:
        raise UsageError(f"seed={given!r}: give a whole number") from None
    if seed is not None and not is_printable_number(seed):
        raise UsageError("seed: give a whole number below 2**64")
    return seed


# a dataclass of so many fields would cost a millisecond of every start
class Options(msgspec.Struct, frozen=True):
    """The caller's arguments, as `Run` documents them."""

    path: Path
    keep: Rule
    every: Every | Auto | None
    start_from: StartFrom | None
    branch_from: Any
    go_back: int | None
    overrides: Mapping[str, Mapping[str, Any]]
    allow_fresh: bool
    accept: Collection[str]
    probe: Callable[[], Any] | None
    deadline: Deadline | None
    hyperparameters: Mapping[str, Any] | None
    dataset: object
    note: str | None
    tracker: Callable[[str | None, int], str | None] | None
    types: frozenset[type]
    seed: int | None
    take_over: bool
    private: bool
    background: bool
    whole: Whole
    trackers: tuple[TrackerOptions, ...]
    board: bool | str | os.PathLike[str]
    mirroring: MirrorOptions | None
    stop_on_nan: bool
    signer: Signer | None
    finished: str

    def __post_init__(self) -> None:
        if not isinstance(self.keep, Rule):
            raise UsageError(
                f'keep={self.keep!r}: give a rule, as in Last(3) | Best("val_acc", max)'
            )
        if not isinstance(self.every, Every | Auto | None):
            raise UsageError(
                f"every={self.every!r}: give Every(steps=1000), "
                "Every(minutes=10), Every(epochs=1), Auto() or None"
            )
        if not isinstance(self.whole, Whole):
            raise UsageError(
                f"whole={self.whole!r}: give a value, as in Whole(checkpoints=20, hours=24)"
            )
        if self.finished not in ("continue", "exit"):
            raise UsageError(f'finished={self.finished!r}: give "exit", or "continue"')
        for change in self.accept:
            if change not in {*MOVES, DATA, settings.ARGUMENTS}:
                known = ", ".join(sorted(MOVES))
                raise UsageError(
                    f"accept={change!r}: what a loader can change is {known}; "
                    f"else {DATA!r} or {settings.ARGUMENTS!r}"
                )
        for kind in self.types:
            if not isinstance(kind, type):
                raise UsageError(
                    f"types={kind!r}: give the classes themselves, as in types=[Colour, Point]"
                )

    def store(self, ranks: Ranks = ALONE) -> Store:
        """The run's checkpoints, with its `keep` rule."""
        kind: Callable[..., Store] = Store
        if not ranks.alone:
            from ..collective.store import CollectiveStore

            kind = partial(CollectiveStore, ranks=ranks)
        whole, days = self.whole, settings.purge_days()
        # a linked file is as old as its first checkpoint, and a purge takes it from all of them
        if days is not None:
            whole = Whole(whole.checkpoints, min(whole.hours, LINKED * 24 * days))
        return kind(
            self.path,
            keep=self.keep,
            take_over=self.take_over,
            private=self.private,
            whole=whole,
            signer=self.signer,
        )
