"""The common part of all feeds: a position, and the facts of their loader."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from ..errors import Mismatch
from .advice import other_samples

# "epoch", "batches" consumed of it, and what else the feed needs to resume there
FeedPosition = Mapping[str, Any]
LoaderFacts = Mapping[str, Any]  # what decides the order and the batches of a loader


class StoredPosition(dict[str, Any]):
    """A position read from a checkpoint. Reading a missing key raises OtherFeedKind: another kind
    of feed has written the position.
    """

    @classmethod
    def of(cls, stored: FeedPosition) -> StoredPosition:
        return cls({key: _as_stored(value) for key, value in stored.items()})

    def __missing__(self, key: str) -> Any:
        raise OtherFeedKind(
            "the position of a loader in the checkpoint "
            "is that of another kind of loader: it has no"
            f" {key!r}. {other_samples()}"
        )


class OtherFeedKind(Mismatch):
    """A position belongs to another kind of feed: it cannot be used, and nothing is damaged."""


def _as_stored(value: Any) -> Any:
    if isinstance(value, dict) and {"epoch", "batches"} <= value.keys():
        return StoredPosition.of(value)
    return [*map(_as_stored, value)] if type(value) is list else value


def to_plain_dicts(position: Any) -> Any:
    """Return a position as plain dicts: a feed may save the stored position that it was given."""
    if type(position) in (dict, StoredPosition):
        return {key: to_plain_dicts(value) for key, value in position.items()}
    return [*map(to_plain_dicts, position)] if type(position) is list else position


def loader_facts(loader: Any, sized: Any = None) -> dict[str, Any]:
    """Return the facts of a loader of any kind; its length is that of `sized`, if given."""
    found: dict[str, Any] = {"loader": type(loader).__name__}
    for fact, attribute in (
        ("batch_size", "batch_size"),
        ("drop_last", "drop_last"),
        ("workers", "num_workers"),
    ):
        value = getattr(loader, attribute, None)
        if isinstance(value, int):
            found[fact] = value
    if (length := known_length(loader if sized is None else sized)) is not None:
        found["length"] = length
    return found


def known_length(loader: Any) -> int | None:
    """Return len(loader), or None if it is endless or of unknown length."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def batches_before(position: FeedPosition | None, epoch: int) -> int:
    """Return the number of batches of `epoch` before `position`."""
    return int(position["batches"]) if position is not None and position["epoch"] == epoch else 0


class Feed:
    """Walks one loader for a run: opens it at a position, and returns positions."""

    replays = False  # whether a resume reads the consumed batches again
    # class or generator's code that promises no replay, or an `Unproven`; None: any place resumes
    unknown: Any = None

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._epoch = 0

    @property
    def unrestorable_part(self) -> str:
        """Return the part of the loader that continues from epoch to epoch and cannot be restored;
        empty if there is none.
        """
        return ""

    @property
    def can_save_here(self) -> bool:
        """Return whether the state may be saved after the last batch that was handed out."""
        return True

    @abstractmethod
    def open(self, epoch: int, position: FeedPosition | None) -> Iterator[Any]:
        """Return the batches of `epoch` from `position`, which position() returned, or from the
        epoch's start.

        The loader's iterator exists, and what has to be skipped has been, when this returns. A
        position of an earlier epoch carries over what the loader itself takes from epoch to epoch,
        and `epoch` is opened at its start.
        """

    def open_and_skip(self, epoch: int, skipped: int) -> Iterator[Any]:
        """Return the batches of a new pass without the first `skipped` ones; used if no position
        can be restored. open() may have failed.
        """
        batches = self.open(epoch, None)
        next(islice(batches, skipped, skipped), None)
        return batches

    def position(self, consumed: int) -> FeedPosition:
        """Return the position from which to resume after `consumed` batches of the epoch, including
        those before an earlier resume.

        It is called after the body of that batch, and before the next batch is taken.
        """
        return {"epoch": self._epoch, "batches": consumed}

    def require_objects(self, objects: Iterable[object]) -> None:
        """Check that the tracked objects include what a loop over this loader needs.

        Raises:
            UsageError: it has not; the message says what to add.
        """

    def describe(self) -> LoaderFacts:
        """Return facts for the fingerprint; those named in feed.MOVES decide which samples a
        position means.
        """
        return loader_facts(self._loader)
