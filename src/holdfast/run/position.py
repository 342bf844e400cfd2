"""Position: where a run is between its steps. Progress: what this attempt has done, and the state
of its loops.

Cursor: how far one loader has come in one epoch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated, Any, NamedTuple

import msgspec

from ..data.facts import Feed, FeedPosition, to_plain_dicts
from ..data.promise import UnprovenCode
from ..errors import Damaged, Mismatch
from ..interval import SafePointMark
from ..legible import nth
from ..state import rng
from ..state.validation import Count, Whole, convert_stored
from ..store import format
from .passes import LoopStack

# in a feed's position: the random numbers before each fetch whose batch is not consumed yet
AHEAD = "ahead"
_Total = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # ENDLESS is one, too


class _LoaderProgress(msgspec.Struct, forbid_unknown_fields=True):
    """How much of a loader is done in the present epoch."""

    consumed: Count
    done: bool


class _Dealt(msgspec.Struct):
    """How accelerate's processes shared out the epoch's order, and what of it is taken."""

    to: tuple[Count, Count, bool]
    together: Count
    began: tuple[Count, Count, str]
    samples: Count
    digest: str


class _FeedShape(msgspec.Struct):
    """The keys that positions of all kinds of feeds have; each kind has more."""

    epoch: Whole
    batches: Count
    samples: Count = 0
    digest: str | None = None
    first: str | None = None
    last: str | None = None
    ended: bool = False
    rng: dict[str, Any] = {}
    last_rng: dict[str, Any] = {}
    ahead: list[dict[str, Any]] = []  # under `AHEAD`
    taken: list[tuple[Count, Count]] = []
    dealt: _Dealt | None = None
    members: list[_FeedShape] = []
    inner: _FeedShape | None = None

    @property
    def newest_epoch(self) -> int:
        """The latest epoch of this feed and of the feeds inside it."""
        within = [*self.members, *([self.inner] if self.inner else [])]
        return max([self.epoch, *(each.newest_epoch for each in within)])


class Position(msgspec.Struct):
    """Completed steps, the epoch in progress, and how far its loaders have advanced (`feeds`:
    where each one is).
    """

    step: Count = 0
    epoch: Whole = 0  # counted from 0, or from the start of the range that run.epochs() was given
    phase: Annotated[str, msgspec.Meta(pattern="^(step|end)$")] = "step"  # of the last safe point
    in_epoch: bool = False  # whether the body of `epoch` has begun
    epoch_began: Count = 0  # the step at which it began
    current: str | None = None  # the loader in progress
    loaders: dict[str, dict[str, Any]] = {}  # name -> {"consumed", "done"} in this epoch
    feeds: dict[str, dict[str, Any]] = {}  # name -> last position of its feed, in any epoch
    targets: dict[str, _Total] = {}  # totals passed to epochs() and steps()
    left: dict[str, _Total] = {}  # loops that `break` ended, with their totals
    went_back: list[Count] = []
    first_epoch: Whole = 0

    def state_dict(self) -> dict[str, Any]:
        return deepcopy(msgspec.structs.asdict(self))

    @classmethod
    def from_stored(cls, stored: Any) -> Position:
        names = {*cls.__struct_fields__}
        # absent in the oldest: 0
        if not isinstance(stored, Mapping) or stored.keys() | {"first_epoch"} != names:
            raise Damaged("the checkpoint's position is not one that Holdfast writes")
        found = convert_stored(cls, stored, "the checkpoint's position")
        passed = convert_stored(
            dict[str, _LoaderProgress], found.loaders, "the checkpoint's positions of loaders"
        )
        feeds = convert_stored(
            dict[str, _FeedShape], found.feeds, "the checkpoint's positions of loaders"
        )
        for name in sorted(feeds.keys() | passed.keys()):
            each, at = passed.get(name), feeds.get(name)
            if each is None:  # in this epoch nothing was taken from it
                began = (
                    at is not None
                    and at.epoch == found.epoch
                    and (found.in_epoch or name == found.current)
                )
                agree = not (began and at and at.batches)
            elif at is None or at.epoch != found.epoch:
                agree = not each.consumed
            else:
                agree = each.done or at.batches == each.consumed
            if not agree or (at is not None and at.newest_epoch > found.epoch):
                raise Damaged(f"the checkpoint's positions of the loader {name!r} disagree")
        return found

    @property
    def checkpoint_name(self) -> format.CheckpointName:
        """The name of a checkpoint of this position."""
        return format.CheckpointName(self.step, self.phase)

    def describe(self) -> str:
        """The position as text for people, who count epochs from 1."""
        total, done = self.targets.get("epochs"), self.epoch - self.first_epoch
        if total is None and not done and not self.in_epoch:
            return f"step {self.step}"
        over = total is not None and self.epoch >= total
        where = nth(done - over, total and total - self.first_epoch)
        return f"step {self.step}, {'after ' if over else ''}epoch {where}"

    def begin_epochs(self, first: int) -> None:
        """Count the epochs from `first`.

        Raises:
            Mismatch: the completed epochs were counted from another first epoch.
        """
        if "epochs" not in self.targets and not self.in_epoch:
            self.first_epoch = self.epoch = first
        if first != self.first_epoch:
            was = self.first_epoch
            raise Mismatch(
                f"run.epochs() begins with epoch {first}, "
                f"and this run began with epoch {was}: write "
                + (f"run.epochs(range({was}, total))" if was else "run.epochs(total)")
            )

    def has_passes_left(self, kind: str, total: int) -> bool:
        """Whether passes of that loop remain.
        One that was left goes on only if its total was raised.
        """
        done = self.epoch if kind == "epochs" else self.step
        return done < total and total > self.left.get(kind, -1)

    def finished(self) -> bool:
        """Whether each loop that was begun reached its total or was left."""
        done = {"steps": self.step, "epochs": self.epoch, "batches": int(self.phase == "end")}
        return bool(self.targets) and all(
            done.get(kind, 0) >= total or kind in self.left for kind, total in self.targets.items()
        )

    def consumed(self, name: str) -> int:
        """Number of batches of the loader `name` completed in this epoch."""
        return int(self.loaders.get(name, {}).get("consumed", 0))

    def is_loader_done(self, name: str) -> bool:
        """Whether the loader `name` has ended for this epoch."""
        return bool(self.loaders.get(name, {}).get("done"))

    def record_safe_point(self, phase: str) -> None:
        """Record a safe point: after a "step", which is counted,
        or at the "end" of an epoch or of the run.
        """
        self.step, self.phase = self.step + (phase == "step"), phase

    def begin_epoch(self) -> None:
        self.in_epoch, self.epoch_began = True, self.step
        self.current, self.loaders = None, {}

    def end_epoch(self) -> None:
        """Advance to the next epoch. An epoch whose body made no step counts as one step."""
        if self.step == self.epoch_began:
            self.step += 1
        self.epoch += 1
        self.in_epoch, self.current, self.loaders = False, None, {}

    def record_loop_left(self, kind: str, total: int) -> None:
        """Record that the outermost loop, with this total, was left: the run ends here."""
        self.left[kind], self.phase = total, "end"
        if self.in_epoch:
            self.end_epoch()

    def set_current_loader(self, name: str | None) -> None:
        """Record that the loader `name` is in progress; None: no loader is."""
        self.current = name


class StateBeforeFetch(NamedTuple):
    """The loader's position and the random numbers just before a batch was fetched ahead."""

    position: FeedPosition
    random: dict[str, Any]  # states of the generators that the fetch drew from, or of all


class LoaderPosition(msgspec.Struct):
    """How far one loader has come in this epoch: `taken` batches are fetched, `consumed` are
    done.
    """

    name: str
    feed: Feed
    consumed: int
    _length: int | None
    _group: int
    taken: int = 0
    ended: bool = False  # no batch is left to be fetched
    # of what was taken and is not consumed; the end, too
    ahead: deque[StateBeforeFetch] = msgspec.field(default_factory=deque)

    def __post_init__(self) -> None:
        self.taken = self.consumed

    @property
    def batches_left(self) -> int | None:
        """Number of batches of this epoch that are not consumed; None if the loader's length is not
        known.

        It is below 0 where no safe point counts as the one behind the last batch: for a trainer,
        which knows by itself where its epochs end, for `run.steps()`, and in an epoch of one step.
        """
        if self._length is None:
            return None
        return -1 if self._length <= self._group else self._length - self.consumed

    @property
    def length(self) -> int | None:
        """Number of batches of an epoch; None if it is not known."""
        return self._length if self._length is not None and self._length > 0 else None

    def note_fetched(self, *, end: bool) -> None:
        """Note that one more batch is fetched, or that none is left."""
        if end:
            self.ended = True
        else:
            self.taken += 1

    def note_consumed(self, batches: int) -> None:
        """Note that `batches` more are done."""
        self.consumed += batches
        while len(self.ahead) > self.taken - self.consumed + self.ended:
            self.ahead.popleft()

    def position_after(self, consumed: int) -> FeedPosition:
        found: FeedPosition = to_plain_dicts(self.feed.position(consumed))
        return found

    def position(self) -> FeedPosition:
        """Where a resume continues: after the consumed batches."""
        if not self.ahead:
            return self.position_after(self.consumed)
        return {**self.ahead[0].position, AHEAD: [fetch.random for fetch in self.ahead]}


class NamedLoader(NamedTuple):
    """A loader that run.batches() received, with its feed."""

    loader: Any
    feed: Feed


class RunProgress:
    """What one attempt has done: its position, its loops and loaders, and the duration of a
    step.
    """

    def __init__(self, seed: int | None) -> None:
        self.position = Position()
        self.walks = LoopStack()
        self.seed = seed
        self.loader_facts: dict[str, Any] = {}  # fingerprint of each loader, by name
        self.sources: dict[str, NamedLoader] = {}
        self.steps_here = 0  # safe points that this attempt has passed
        self.step_s = 0.0  # the longest step so far
        self.last_step_s = 0.0
        self.last_point_s = time.monotonic()
        self.epoch_rng: Any = None  # random numbers when the body of the present epoch began
        self.epoch_generators: dict[str, Any] = {}  # the tracked ones then, by their paths
        self._looked_at_body = False
        self.unproven: dict[str | None, UnprovenCode | None] = {}  # by loader; None: the framework
        self._epochs_in_steps = 0
        self._cursor: LoaderPosition | None = None  # the loader in progress

    @property
    def batches(self) -> tuple[int | None, int | None]:
        """How many batches of the loader in progress are done, and how many there are; None:
        unknown.
        """
        cursor = self._cursor
        return (None, None) if cursor is None else (cursor.consumed, cursor.length)

    @property
    def batches_left(self) -> int | None:
        """How many batches of the loader in progress are not consumed;
        None if its length is not known.
        """
        return None if self._cursor is None else self._cursor.batches_left

    @property
    def unrestorable_part(self) -> str:
        """Return which part of the loader in progress no start can restore, even at an
        epoch's end; or "".
        """
        return "" if self._cursor is None else self._cursor.feed.unrestorable_part

    @property
    def unproven_here(self) -> UnprovenCode | None:
        """Return the loader or framework for which a start from here is not proven exact; None if
        there is none.

        A start from an epoch's end is always exact. Elsewhere it may be refused or give other
        results.
        """
        loader = None if self._cursor is None else self.unproven.get(self._cursor.name)
        return loader or (self.unproven.get(None) if self.position.in_epoch else None)

    @property
    def has_epochs(self) -> bool:
        return "epochs" in self.position.targets or self._epochs_in_steps > 0

    @property
    def has_several_epochs(self) -> bool:
        """Whether the run has more than one epoch, so that an epoch's end is not the run's end."""
        position = self.position
        return (
            max(position.targets.get("epochs", 0) - position.first_epoch, self._epochs_in_steps) > 1
        )

    def restore(self, position: Position, memory: Mapping[str, Any]) -> None:
        """Restore the position from the run's own part of a checkpoint."""
        for name in Position.__struct_fields__:  # every part of the attempt holds this position
            setattr(self.position, name, getattr(position, name))
        self.seed, self.epoch_rng = memory["seed"], memory["epoch_rng"]
        self.epoch_generators = memory.get("epoch_generators", {})
        self.loader_facts = memory["fingerprint"]["loaders"]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, with the present positions of the feeds."""
        position = self.position
        if self._cursor is not None:
            position.feeds[self._cursor.name] = dict(self._cursor.position())
        return position.state_dict()

    def note_epochs_in_steps(self, epochs: int) -> None:
        """Note how many epochs a loop has that goes up to a number of steps;
        0: none, or nobody knows.
        """
        self._epochs_in_steps = epochs

    def choose_seed(self, seed: int) -> None:
        """Set the seed of a fresh run's data order to `seed`, unless the caller gave one."""
        self.seed = seed if self.seed is None else self.seed

    def note_epoch_begin(self, generators: dict[str, Any]) -> None:
        """Note the random numbers with which the epoch's body begins;
        `generators`: copies of the tracked ones.
        """
        self.position.begin_epoch()
        self.epoch_rng, self.epoch_generators = rng.capture(), generators

    def take_body_unchecked(self) -> bool:
        """Return True at the first call in each epoch loop: its body's code was not checked yet."""
        first, self._looked_at_body = not self._looked_at_body, True
        return first

    def count_safe_point(self) -> int:
        """Count one more safe point of this attempt; return its number."""
        self.steps_here += 1
        return self.steps_here

    def restart_step_clock(self) -> None:
        """Measure the next step from now on."""
        self.last_point_s = time.monotonic()

    def measure_step(self) -> None:
        self.last_step_s = time.monotonic() - self.last_point_s
        self.step_s = max(self.step_s, self.last_step_s)

    def interval_mark(self, epoch: int | None = None) -> SafePointMark:
        """Return this moment, for the interval between saves.
        `epoch`: the one that just ended, at its end.
        """
        position = self.position
        now = position.epoch if epoch is None else epoch
        return SafePointMark(
            position.step, now - position.first_epoch, time.monotonic(), position.phase == "end"
        )

    def register_loader(self, name: str, source: NamedLoader, facts: Mapping[str, Any]) -> None:
        self.loader_facts[name], self.sources[name] = facts, source

    def set_loader_in_progress(self, cursor: LoaderPosition) -> None:
        """Note the loader in progress."""
        self._cursor = cursor

    def note_consumed(self, cursor: LoaderPosition) -> None:
        """Note how many batches of the loader in progress are done; a safe point follows."""
        self._cursor = cursor
        self.position.loaders[cursor.name] = {"consumed": cursor.consumed, "done": False}

    def end_loader(self, cursor: LoaderPosition) -> None:
        """End this loader for this epoch, after the batches that were taken."""
        self._cursor = None
        self.position.set_current_loader(None)
        self.position.feeds[cursor.name] = dict(cursor.position_after(cursor.taken))
        self.position.loaders[cursor.name] = {"consumed": cursor.taken, "done": True}
