"""Feeds: how a loop walks a loader, so that any batch of any epoch can be come back to.

A feed opens an epoch at a position and says, at each safe point, which position it has reached.

    ZipFeed        holdfast.data.Zip: the positions of several loaders
    SequenceFeed   a list, an array: the batch's number is the position
    StatefulFeed   an object with state_dict() and load_state_dict(): its own position
    ReplayFeed     any other iterable: what was consumed is read again, and compared
    holdfast.torch.loader   torch's DataLoader: the place in the epoch's order
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from typing import Any, Protocol

from ..errors import UsageError
from .facts import facts, reached
from .replay import ReplayFeed
from .stateful import StatefulFeed
from .zipped import Zip

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
    if type(loader) is Zip:
        return ZipFeed(loader, [feed_for(each, seed, name) for each in loader.loaders])
    for framework in _frameworks(loader):
        feed: Feed | None = import_module(FRAMEWORKS[framework]).feed_for(loader, seed)
        if feed is not None:
            return feed
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return StatefulFeed(loader)
    if isinstance(loader, Mapping | AbstractSet | str | bytes) or hasattr(loader, "keys"):
        raise UsageError(f'the loader "{name}" is a {type(loader).__name__}: its order is no order of batches')
    if isinstance(loader, Sequence) or (hasattr(loader, "__getitem__") and hasattr(loader, "__len__")):
        return SequenceFeed(loader)
    if isinstance(loader, Iterable):
        return ReplayFeed(loader)
    raise UsageError(f'the loader "{name}" is a {type(loader).__name__}: nothing to iterate over')


def _frameworks(loader: Any) -> list[str]:
    names = dict.fromkeys(cls.__module__.partition(".")[0] for cls in type(loader).__mro__)
    return [name for name in names if name in FRAMEWORKS]


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


class ZipFeed:
    """Loaders side by side: the position is that of each of them."""

    def __init__(self, loader: Zip, feeds: Sequence[Feed]) -> None:
        self._loader = loader
        self._feeds = feeds
        self._epoch = 0
        self.replays = any(feed.replays for feed in feeds)

    def open(self, epoch: int, position: Mapping[str, Any] | None) -> Iterator[Any]:
        self._epoch = epoch
        positions = [None] * len(self._feeds) if position is None else position["members"]
        return zip(*(feed.open(epoch, at) for feed, at in zip(self._feeds, positions, strict=True)), strict=False)

    def position(self, consumed: int) -> Mapping[str, Any]:
        members = [dict(feed.position(consumed)) for feed in self._feeds]
        return {"epoch": self._epoch, "batches": consumed, "members": members}

    def describe(self) -> Mapping[str, Any]:
        members = [feed.describe() for feed in self._feeds]
        names = dict.fromkeys(name for member in members for name in member)
        return facts(self._loader) | {name: [member.get(name) for member in members] for name in names}
