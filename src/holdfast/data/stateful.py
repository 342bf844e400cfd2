"""Loaders that keep their own position."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from ..errors import HoldfastError, Mismatch, UsageError
from ..state import rng
from .advice import Advice, other_samples
from .digest import digest as _digest
from .facts import Feed, FeedPosition

_NOTHING = object()
# attributes with the stream or the node that is inside another one
_INSIDE = ("_ex_iterable", "ex_iterable", "root", "source", "iterable")


class StatefulFeed(Feed):
    """An object with state_dict() and load_state_dict(), for example torchdata's
    StatefulDataLoader.

    `keeper` is the object with the state, if that is not the loader itself but, for example, a
    dataset; `stream` is the dataset. A pass begins with the random numbers of the loop, as it would
    without Holdfast. On a resume these are restored while the loader loads its state and makes its
    iterator, because a loader may draw some there.

    Some begin every pass at the state that was loaded last, as Hugging Face's streams do in the
    same epoch: these are told to forget it. A new pass of another loader that does so is begun
    again, after no state was loaded: None, or an empty one.
    """

    def __init__(self, loader: Any, keeper: Any = None, stream: Any = None) -> None:
        super().__init__(loader)
        self._keeper = loader if keeper is None else keeper
        self._drawn = drawn_when_made(loader if stream is None else stream)
        self._ended = False
        self._began: Any = None  # the random numbers when this pass began
        self._asked = False  # whether its state was available
        # the state that was loaded, and the one behind the first batch after it
        self._loaded: Any = None

    def open(self, epoch: int, position: FeedPosition | None) -> Iterator[Any]:
        self._epoch, self._ended = epoch, False
        if position is not None:
            with rng.seeded_scope(0):
                rest = self._resumed(epoch, position)
        if position is None or position["epoch"] != epoch:
            first = position is None and self._began is None
            self._began = rng.capture()
            rest = self._begin_pass(first=first)
        self._require_state()
        return self._until_ended(rest, is_new=position is None or position["epoch"] != epoch)

    def position(self, consumed: int) -> FeedPosition:
        # loaders return state that they continue to change
        state = copy.deepcopy(self._keeper.state_dict())
        found = {
            **super().position(consumed),
            **self._drawn,
            "state": state,
            "ended": self._ended,
            "began": self._began,
        }
        return found | self._generator_state()

    def _begin_pass(self, *, first: bool) -> Iterator[Any]:  # noqa: ARG002
        """Begin one pass; `first`: it is the loader's first pass in the run."""
        return iter(self._loader)

    def _resumed(self, epoch: int, position: FeedPosition) -> Iterator[Any]:
        require_same_draw(position, self._drawn)
        if position["epoch"] == epoch and not position["ended"]:
            self._began = position.get("began")
            rng.restore(self._began or {})
            self._load_state(position["state"])
            batches = self._iterate_from_loaded()
            self._restore_generator(position)
            return batches
        self._finish_epoch(position)
        self._began, self._ended = position.get("began"), position["epoch"] == epoch
        return iter(())  # iterating a loader that is at its end would begin the next epoch

    def _finish_epoch(self, position: FeedPosition) -> None:
        """From the state of a completed epoch, advance the loader so that the next iter() begins a
        new epoch.

        If a loader yields no further batch from that state, it is at the end. If it yields one, and
        the loop did not leave early, the epoch had ended before the state was taken: that batch is
        the next epoch's first.
        """
        self._load_state(position["state"])
        if next(self._iterate_from_loaded(), _NOTHING) is not _NOTHING and position["ended"]:
            self._load_state(position["state"])
            if hasattr(self._loader, "next_iter_state"):
                # torchdata makes one iterator that loads the state, and then another
                iter(self._loader)
        self._forget_loaded_state()
        self._restore_generator(position)

    def _iterate_from_loaded(self) -> Iterator[Any]:
        """Return the rest of a pass, which may be nothing: torchdata's nodes would begin another
        one, and take a batch ahead to find out.
        """
        restarts = getattr(self._loader, "restart_on_stop_iteration", None)
        if restarts is None:
            return iter(self._loader)
        self._loader.restart_on_stop_iteration = False
        try:
            return iter(self._loader)
        finally:
            self._loader.restart_on_stop_iteration = restarts

    def _forget_loaded_state(self) -> None:
        if self._drawn and self._loaded is not None:
            self._keeper.load_state_dict(None)
            self._loaded = None

    def _load_state(self, state: Any) -> None:
        """Give the saved state to the loader.

        Raises:
            Mismatch: the loader cannot load it; another one has saved it.
        """
        self._loaded = (state, None)
        try:
            self._keeper.load_state_dict(copy.deepcopy(state))
        except HoldfastError:
            raise
        except Exception as error:  # a script's objects may raise anything
            raise Mismatch(
                f"a {type(self._keeper).__name__} in run.batches "
                "cannot load the state that is in the checkpoint:"
                f" {type(error).__name__} ({error}). {other_samples()}"
            ) from error

    def _until_ended(self, batches: Iterator[Any], *, is_new: bool) -> Iterator[Any]:
        before = rng.capture() if is_new and self._loaded is not None else None
        for batch in batches:
            if before is not None and self._repeats_loaded_state():
                break
            self._forget_loaded_state()
            if self._loaded is not None and self._loaded[1] is None and not is_new:
                self._loaded = self._loaded[0], [copy.deepcopy(self._keeper.state_dict())]
            before = None
            yield batch
        self._forget_loaded_state()
        if before is not None:  # it began at the loaded state, which may be its end
            rng.restore(before)
            yield from self._from_the_start()
        self._ended = True

    def _from_the_start(self) -> Iterator[Any]:
        """Begin a pass of a loader that begins each one at the state that was loaded last.

        Raises:
            Mismatch: it does so whatever is loaded.
        """
        before = rng.capture()
        nothings: tuple[Any, ...] = (None, {})
        for nothing in nothings:
            rng.restore(before)
            with suppress(Exception):  # a script's objects may raise anything
                self._keeper.load_state_dict(nothing)
                batches = iter(self._loader)
                first = next(batches, _NOTHING)
                if first is not _NOTHING and not self._repeats_loaded_state():
                    self._loaded = None
                    return chain([first], batches)
        raise Mismatch(
            f"a {type(self._keeper).__name__} in run.batches "
            f"begins epoch {self._epoch} where the one before was"
            f" resumed. {other_samples()}"
        )

    def _repeats_loaded_state(self) -> bool:
        """Return whether the first batch of a new pass is the one that followed the state that was
        loaded.
        """
        loaded, after = self._loaded
        return after is not None and _digest(loaded) != _digest(after[0]) == _digest(
            self._keeper.state_dict()
        )

    def _require_state(self) -> None:
        """Require that the loader's state_dict() works.

        Raises:
            UsageError: the loader has a state_dict() that does not work, so that no position could
                be saved.
        """
        if self._asked:
            return
        try:
            with rng.seeded_scope(0):
                self._keeper.state_dict()
        except Exception as error:
            inner = (
                "loader.base_dataloader"
                if hasattr(self._loader, "base_dataloader")
                else "the loader that it wraps"
            )
            raise UsageError(
                f"run.batches cannot resume this {type(self._loader).__name__}: "
                "its state_dict() raises"
                f" {type(error).__name__} ({error}). "
                + str(
                    Advice(
                        "loader inside",
                        f"Pass {inner}, and move each batch to its device in the loop",
                    )
                )
            ) from error
        self._asked = True

    def _generator_state(self) -> dict[str, Any]:
        """Return the torch.Generator that the user gave to the loader: the loader draws more from
        it than its state records.
        """
        generator: Any = getattr(self._loader, "generator", None)
        return {"generator": generator.get_state()} if hasattr(generator, "get_state") else {}

    def _restore_generator(self, position: FeedPosition) -> None:
        if "generator" in position:
            self._loader.generator.set_state(position["generator"])


def loses_its_place(loader: Any) -> bool:
    """Return whether the state_dict() of a stream, or of nodes over one, is not its place: a
    shuffle's buffer is left out, or the next pass begins at the state that was loaded.

    Source: datasets, IterableDataset.load_state_dict; torchdata, nodes.IterableWrapper.reset.
    """
    of_nodes = type(loader).__module__.startswith("torchdata.nodes.")
    kinds = {type(part).__name__ for part in _streams_in(loader)}
    return bool(kinds) and (of_nodes or "BufferShuffledExamplesIterable" in kinds)


def drawn_when_made(loader: Any) -> dict[str, str]:
    """Return a key for positions in Hugging Face's streams: a digest of the generators that they
    iterate with copies of. Nothing for other loaders.
    """
    parts = [*_streams_in(loader)]
    generators = [vars(part).get("generator") for part in parts]
    states = [each.bit_generator.state for each in generators if each is not None]
    return {"drawn": _digest(states)} if parts else {}


def require_same_draw(position: FeedPosition, drawn: dict[str, str]) -> None:
    """Raise Mismatch if a stream has drawn another order than that of a position."""
    if "drawn" in position and position["drawn"] != drawn.get("drawn"):
        raise Mismatch(
            "the stream in run.batches has another order in each process: "
            f"give shuffle and interleave_datasets a seed. {other_samples()}"
        )


def _streams_in(loader: Any) -> Iterator[Any]:
    """Yield the parts of a stream of Hugging Face's datasets, also of one in torchdata's nodes."""
    home = type(loader).__module__
    if not home.startswith(("datasets.", "torchdata.nodes.")):
        return
    if home.startswith("datasets."):
        yield loader
    inside = vars(loader)
    several = [*inside.get("ex_iterables", ()), *inside.get("source_nodes", {}).values()]
    for part in [*map(inside.get, _INSIDE), *several]:
        yield from _streams_in(part)
