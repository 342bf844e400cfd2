"""Feeds: how a loop walks a loader, so that any batch of any epoch can be come back to.

A feed opens an epoch at a position and says, at each safe point, which position it has reached.

    SequenceFeed   a list, an array: the batch's number is the position
    StatefulFeed   an object with state_dict() and load_state_dict(): its own position
    ReplayFeed     any other iterable: what was consumed is read again
    holdfast.torch.loader   torch's DataLoader: the place in the epoch's order
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import Any, Protocol

from ..errors import UsageError
from ..state import rng
from .order import key

# Facts of describe() that decide which samples a position means. The others (workers, ...) may change freely.
MOVES = frozenset(
    {"accumulate", "batch_size", "drop_last", "groups", "length", "loader", "order"}
    | {"sampler", "seed", "shards", "shuffle"}
)

# The framework of a loader's class -> our module that knows its loaders: feed_for(loader, seed) -> Feed | None.
FRAMEWORKS = {"torch": "holdfast.torch.loader"}


class Feed(Protocol):
    replays: bool  # coming back costs reading again what was consumed

    def open(self, epoch: int, position: Mapping[str, Any] | None) -> Iterator[Any]:
        """Batches of `epoch` from `position`, which position() returned, or from its start.

        The loader's iterator exists, and what has to be skipped has been, when this returns. A position of an earlier
        epoch carries over what the loader itself takes from epoch to epoch, and `epoch` is opened at its start.
        """
        ...

    def position(self, consumed: int) -> Mapping[str, Any]:
        """What resumes after `consumed` batches of the epoch, those before an earlier resume included.

        It is asked when that batch's body has run, before the next batch is taken.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """Facts for the fingerprint; those named in MOVES decide which samples a position means."""
        ...


def feed_for(loader: Any, seed: int, name: str = "loader") -> Feed:
    """The feed that suits `loader`.

    Raises:
        UsageError: it is nothing that a loop could take batches from.
    """
    for module in _frameworks(loader):
        feed: Feed | None = import_module(module).feed_for(loader, seed)
        if feed is not None:
            return feed
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return StatefulFeed(loader, seed)
    if isinstance(loader, Mapping | AbstractSet | str | bytes) or hasattr(loader, "keys"):
        raise UsageError(f'the loader "{name}" is a {type(loader).__name__}: its order is no order of batches')
    if isinstance(loader, Sequence) or (hasattr(loader, "__getitem__") and hasattr(loader, "__len__")):
        return SequenceFeed(loader)
    if isinstance(loader, Iterable):
        return ReplayFeed(loader)
    raise UsageError(f'the loader "{name}" is a {type(loader).__name__}: nothing to iterate over')


def _frameworks(loader: Any) -> list[str]:
    names = dict.fromkeys(cls.__module__.partition(".")[0] for cls in type(loader).__mro__)
    return [FRAMEWORKS[name] for name in names if name in FRAMEWORKS]


def facts(loader: Any) -> dict[str, Any]:
    """What a loader of any kind says of itself."""
    found: dict[str, Any] = {"loader": type(loader).__name__}
    for fact, attribute in (("batch_size", "batch_size"), ("drop_last", "drop_last"), ("workers", "num_workers")):
        value = getattr(loader, attribute, None)
        if isinstance(value, int):
            found[fact] = value
    with suppress(TypeError, NotImplementedError):  # endless, or it does not know
        found["length"] = len(loader)
    return found


def reached(position: Mapping[str, Any] | None, epoch: int) -> int:
    """Batches of `epoch` that lie before `position`."""
    return int(position["batches"]) if position is not None and position["epoch"] == epoch else 0


class SequenceFeed:
    """A list, a tuple, an array: batch `i` is `batches[i]`, in the same order every epoch."""

    replays = False

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self._epoch = 0

    def open(self, epoch: int, position: Mapping[str, Any] | None) -> Iterator[Any]:
        self._epoch = epoch
        return (self._batches[number] for number in range(reached(position, epoch), len(self._batches)))

    def position(self, consumed: int) -> Mapping[str, Any]:
        return {"epoch": self._epoch, "batches": consumed}

    def describe(self) -> Mapping[str, Any]:
        return facts(self._batches)


class ReplayFeed:
    """Any iterable: an epoch is one pass over it, and resuming passes over what was consumed once more."""

    replays = True

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self._epoch: int | None = None

    def open(self, epoch: int, position: Mapping[str, Any] | None) -> Iterator[Any]:
        batches = iter(self._batches)
        if batches is self._batches and self._epoch is not None:
            raise UsageError(
                f"epoch {epoch} cannot begin: a {type(batches).__name__} can be iterated once only;"
                " pass a list, or an object whose __iter__ starts afresh"
            )
        self._epoch = epoch
        skip(batches, reached(position, epoch))
        return batches

    def position(self, consumed: int) -> Mapping[str, Any]:
        return {"epoch": self._epoch or 0, "batches": consumed}

    def describe(self) -> Mapping[str, Any]:
        return facts(self._batches)


class StatefulFeed:
    """An object with state_dict() and load_state_dict(), torchdata's StatefulDataLoader for one.

    `keeper` is what holds the state, where that is not the loader itself: a dataset, for one. Making an iterator draws
    random numbers, more of them after a load: they come from (seed, epoch), and the global generators stand still.
    """

    replays = False

    def __init__(self, loader: Any, seed: int, keeper: Any = None) -> None:
        self._loader = loader
        self._seed = seed
        self._keeper = loader if keeper is None else keeper
        self._epoch = 0
        self._ended = False

    def open(self, epoch: int, position: Mapping[str, Any] | None) -> Iterator[Any]:
        self._epoch = epoch
        self._ended = False
        with rng.scope(key("loader", self._seed, epoch)):
            return self._opened(epoch, position)

    def _opened(self, epoch: int, position: Mapping[str, Any] | None) -> Iterator[Any]:
        if position is None:
            return self._until_ended(iter(self._loader))
        self._keeper.load_state_dict(position["state"])
        if position["epoch"] == epoch and not position["ended"]:
            batches = iter(self._loader)
            self._restore_generator(position)
            return self._until_ended(batches)
        self._leave(position)
        if position["epoch"] != epoch:
            return self._until_ended(iter(self._loader))
        self._ended = True
        return iter(())  # iterating a loader that is at its end would begin the next epoch

    def position(self, consumed: int) -> Mapping[str, Any]:
        state = copy.deepcopy(self._keeper.state_dict())  # loaders hand out what they go on changing
        return {"epoch": self._epoch, "batches": consumed, "state": state, "ended": self._ended} | self._generator()

    def describe(self) -> Mapping[str, Any]:
        return facts(self._loader)

    def _until_ended(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        self._ended = True

    def _leave(self, position: Mapping[str, Any]) -> None:
        """Go where the next iter() begins a new epoch, from the state of an epoch that is over."""
        if not position["ended"]:
            next(iter(self._loader), None)
        elif "generator" in position:
            iter(self._loader)  # torchdata draws from the generator while it loads
        self._restore_generator(position)

    def _generator(self) -> dict[str, Any]:
        """A torch.Generator that the user gave to the loader: it draws more from it than its state remembers."""
        generator: Any = getattr(self._loader, "generator", None)
        return {"generator": generator.get_state()} if hasattr(generator, "get_state") else {}

    def _restore_generator(self, position: Mapping[str, Any]) -> None:
        if "generator" in position:
            self._loader.generator.set_state(position["generator"])


def skip(batches: Iterator[Any], count: int) -> None:
    """Take and drop `count` batches."""
    next(islice(batches, count, count), None)
