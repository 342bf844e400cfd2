"""Feeds: how a loop walks a loader, so that a resume continues after any batch of any epoch.

A feed opens an epoch at a position, and reports at each safe point which position it has reached.

    ZipFeed        holdfast.data.Zip: the positions of several loaders
    SequenceFeed   a list, an array: the batch's number is the position
    SeekableFeed   holdfast.data.Stream: the number of samples taken
    StatefulFeed   an object with state_dict() and load_state_dict(): its own position
    ReplayFeed     any other iterable: the consumed batches are read again, and compared
    holdfast.torch.loader   torch's DataLoader: the place in the epoch's order
    holdfast.accelerate.loader   a prepared loader: that of the torch loader inside
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from typing import Any

from ..errors import Mismatch, UsageError
from .advice import other_samples
from .digest import digest
from .facts import Feed, FeedPosition, LoaderFacts, batches_before
from .replay import ReplayFeed
from .seekable import SeekableBatches, SeekableFeed
from .stateful import StatefulFeed, loses_its_place
from .zipped import Zip

# Facts of describe() that decide which samples a position means. The others (workers, ...) may
# change freely.
MOVES = frozenset(
    {"accumulate", "batch_size", "drop_last", "groups", "length", "loader", "order"}
    | {"sampler", "seed", "shards", "shuffle", "sources"}
)

# the number of a list's next batches that are compared, and about the number of later ones
NEXT = 4

# The framework of a loader's class -> our module that knows its loaders: feed_for(loader, seed) ->
# Feed | None.
FRAMEWORKS = {"torch": "holdfast.torch.loader", "accelerate": "holdfast.accelerate.loader"}


def feed_for(loader: Any, seed: int, name: str = "loader") -> Feed:
    """The feed that suits `loader`.

    Raises:
        UsageError: a loop cannot take batches from it.
    """
    if isinstance(loader, Feed):  # an adapter's
        return loader
    if type(loader) is Zip:
        return ZipFeed(loader, [feed_for(each, seed, name) for each in loader.loaders])
    if isinstance(loader, SeekableBatches):
        return SeekableFeed(loader)
    homes = dict.fromkeys(kind.__module__.partition(".")[0] for kind in type(loader).__mro__)
    found = (
        import_module(FRAMEWORKS[home]).feed_for(loader, seed)
        for home in homes
        if home in FRAMEWORKS
    )
    if (feed := next(filter(None, found), None)) is not None:
        return feed  # type: ignore[no-any-return]
    if (
        hasattr(loader, "state_dict")
        and hasattr(loader, "load_state_dict")
        and not loses_its_place(loader)
    ):
        return StatefulFeed(loader)
    if isinstance(loader, Mapping | AbstractSet | str | bytes) or hasattr(loader, "keys"):
        raise UsageError(
            f'the loader "{name}" is a {type(loader).__name__}: it has no order of batches'
        )
    if isinstance(loader, Sequence) or (
        hasattr(loader, "__getitem__") and hasattr(loader, "__len__")
    ):
        return SequenceFeed(loader)
    if isinstance(loader, Iterable):
        return ReplayFeed(loader)
    raise UsageError(f'the loader "{name}" is a {type(loader).__name__}: nothing to iterate over')


class SequenceFeed(Feed):
    """A list, a tuple, an array: batch `i` is `batches[i]`, in the same order every epoch.

    A list can be reordered in place. So the digests of some of the batches that follow are saved
    and compared, and of a list that changes from epoch to epoch no position is restored, unless the
    run restores the list.
    """

    def __init__(self, batches: Any) -> None:
        super().__init__(batches)
        own = getattr(type(batches), "__getitem__", None)
        # len() of other types may run a script's code
        self._is_list = own in {list.__getitem__, tuple.__getitem__}
        self._changes = self._is_tracked = False
        self._order: list[list[Any]] | None = None  # of the list when the epoch before began

    def require_objects(self, objects: Iterable[object]) -> None:
        held = [
            each
            for one in objects
            for each in (one, *(one.values() if isinstance(one, dict) else ()))
        ]
        self._is_tracked = any(each is self._loader for each in held)

    def open(self, epoch: int, position: FeedPosition | None) -> Iterator[Any]:
        self._epoch, batches = epoch, self._loader
        # otherwise the run restores it as the loop begins
        if position is not None and not self._is_tracked:
            self._require_same_batches(epoch, position)
        now = self._sample_digests(0) if self._is_list else []
        self._changes = self._changes or (self._order is not None and now != self._order)
        self._order = now
        return (batches[number] for number in range(batches_before(position, epoch), len(batches)))

    def _require_same_batches(self, epoch: int, position: FeedPosition) -> None:
        """Compare the list's next batches with those of the checkpoint.

        Raises:
            Mismatch: the list is another one, or nobody can tell.
        """
        if "changes" in position and position["epoch"] != epoch:
            raise self._other_batches_error(
                f"by the end of epoch {position['epoch']} it had been changed in place"
            )
        for number, found in position.get("next", []) if batches_before(position, epoch) else ():
            if number < len(self._loader) and digest(self._loader[number]) != found:
                raise self._other_batches_error(
                    f"batch {number + 1} of epoch {epoch} is another one"
                )

    def position(self, consumed: int) -> FeedPosition:
        following = self._sample_digests(consumed) if self._is_list else []
        changes = {"changes": True} if self._changes and not self._is_tracked else {}
        return {
            **super().position(consumed),
            **({"next": following} if following else {}),
            **changes,
        }

    def _sample_digests(self, first: int) -> list[list[Any]]:
        """Return the numbers and digests of the next batches, and of some that are spread over the
        rest.
        """
        count = len(self._loader)
        numbers = {
            *range(first, min(first + NEXT, count)),
            *range(first, count, max(1, (count - first) // NEXT)),
        }
        return [[number, digest(self._loader[number])] for number in sorted(numbers)]

    def _other_batches_error(self, why: str) -> Mismatch:
        return Mismatch(
            f"the {type(self._loader).__name__} in run.batches "
            f"is not as it was: {why}. {other_samples()}"
        )


class ZipFeed(Feed):
    """Loaders side by side: the position is that of each of them."""

    def __init__(self, loader: Zip, feeds: Sequence[Feed]) -> None:
        super().__init__(loader)
        self._feeds = feeds
        self.replays = any(feed.replays for feed in feeds)
        self.unknown = next(filter(None, (feed.unknown for feed in feeds)), None)

    @property
    def can_save_here(self) -> bool:
        return all(feed.can_save_here for feed in self._feeds)

    def require_objects(self, objects: Iterable[object]) -> None:
        for feed in self._feeds:
            feed.require_objects(objects)

    def open(self, epoch: int, position: FeedPosition | None) -> Iterator[Any]:
        self._epoch = epoch
        positions = [None] * len(self._feeds) if position is None else position["members"]
        return zip(
            *(feed.open(epoch, at) for feed, at in zip(self._feeds, positions, strict=True)),
            strict=False,
        )

    def position(self, consumed: int) -> FeedPosition:
        return {
            **super().position(consumed),
            "members": [dict(feed.position(consumed)) for feed in self._feeds],
        }

    def describe(self) -> LoaderFacts:
        members = [feed.describe() for feed in self._feeds]
        names = dict.fromkeys(name for member in members for name in member)
        return {
            **super().describe(),
            **{name: [member.get(name) for member in members] for name in names},
        }
