"""Plans: the order in which the clone of a DataLoader takes its samples, and how to resume in
mid-epoch.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
import xxhash
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from ..data import groups
from ..data.advice import other_samples
from ..data.facts import FeedPosition, LoaderFacts, known_length
from ..data.memory import PassMemory
from ..data.order import derive_key
from ..data.sampler import Sampler
from ..data.seeded import Index
from ..data.seekable import SeekableBatches, Step
from ..errors import Mismatch, UsageError
from ..state import rng
from .loader_clone import torchdata_class
from .samplers import InterruptibleDistributedGroupedBatchSampler, InterruptibleDistributedSampler

_NOTHING = object()
# keys of positions: a sampler's state between passes; its pass is over
_MEMORY, _OVER = "memory", "over"
_DEALT = "dealt"  # likewise: how the processes share the samples out

BatchOrder = Sampler | InterruptibleDistributedSampler  # orders that can start anywhere


class BatchPlan:
    """The order of one DataLoader."""

    carries = False  # the sampler may keep state from epoch to epoch

    @abstractmethod
    def walk(self, epoch: int, at: FeedPosition) -> Iterator[Step]:
        """Yield the steps of `epoch` from `at`; skipped ones are already skipped on return.

        At an epoch's start `at["before"]`, if present, is the last consumed position of the epoch
        before.
        """

    def consumed(self, position: FeedPosition) -> None:
        """Record that the loop has taken the batch that ends at `position`."""

    def end_position(self) -> dict[str, Any]:
        """Return keys to add to the position after an epoch's last batch."""
        return {}

    @abstractmethod
    def describe(self) -> LoaderFacts:
        """Return the facts that determine the order."""


@dataclass
class OrderPlan(BatchPlan):
    """Batches along one of our orders.
    `samples` of a position counts those of all ranks that share it.
    """

    order: BatchOrder
    batch_size: int | None
    drop_last: bool
    name: str

    def walk(self, epoch: int, at: FeedPosition) -> Iterator[Step]:
        if "digest" in at and self.order.world > 1:
            raise Mismatch(
                f"{at['batches']} batches into epoch {epoch} this "
                "position counts the samples of one rank only;"
                f" its place among all ranks is not known. {other_samples()}"
            )
        self.order.seek(epoch, at["samples"])
        return self._steps(epoch, at["batches"], at["samples"])

    def consumed(self, position: FeedPosition) -> None:
        # correct even if the user saves the sampler's state
        self.order.seek(position["epoch"], position["samples"])

    def describe(self) -> LoaderFacts:
        order = self.order.describe()
        if not isinstance(self.order, Sampler):
            return order | {"sampler": self.name} | _rank_facts(self.order.world, self.batch_size)
        if self.name != "holdfast":
            del order["seed"]  # it belongs to the run
        return order | {"sampler": self.name}

    def _steps(self, epoch: int, batches: int, samples: int) -> Iterator[Step]:
        size = self.batch_size or 1
        indices = self.order.indices(epoch, samples)
        while batch := list(itertools.islice(indices, size)):
            if self.drop_last and len(batch) < size:
                return
            batches += 1
            samples += len(batch) * self.order.world
            yield Step(batch if self.batch_size else batch[0], position_of(epoch, batches, samples))


@dataclass
class StreamPlan(BatchPlan):
    """Batches that the dataset itself makes, each from its place."""

    stream: SeekableBatches

    def walk(self, epoch: int, at: FeedPosition) -> Iterator[Step]:
        return self.stream.steps(epoch, at if at["batches"] else None)

    def describe(self) -> LoaderFacts:
        return self.stream.describe()


@dataclass
class GroupPlan(BatchPlan):
    """Batches of our grouped batch sampler; a position records how many batches of each size all
    ranks have taken.
    """

    sampler: InterruptibleDistributedGroupedBatchSampler

    def walk(self, epoch: int, at: FeedPosition) -> Iterator[Step]:
        self.sampler.seek(epoch, at.get("taken", []))
        return self._steps(epoch, at["batches"], at["samples"], self.sampler.taken)

    def consumed(self, position: FeedPosition) -> None:
        self.sampler.seek(position["epoch"], position["taken"])

    def describe(self) -> LoaderFacts:
        sampler = self.sampler
        size = {
            "sampler": type(sampler).__name__,
            "batch_size": sampler.batch_size,
            "drop_last": sampler.drop_last,
        }
        return sampler.describe() | size | _rank_facts(sampler.world, sampler.batch_size)

    def _steps(self, epoch: int, batches: int, samples: int, taken: groups.Taken) -> Iterator[Step]:
        for number, batch in enumerate(self.sampler.batches(epoch, taken), 1):
            samples += len(batch) * self.sampler.world
            now = groups.add_batches(taken, self.sampler.together, number)
            position = position_of(epoch, batches + number, samples) | {
                "taken": [[*pair] for pair in now]
            }
            yield Step(batch, position)


@dataclass
class ReplayPlan(BatchPlan):
    """Batches of a user's sampler; a resume draws the indices again and compares them.

    The sampler draws from its own random stream, seeded anew each epoch. So do torch generators
    that it keeps.
    """

    source: Any
    seed: int

    carries = True
    _walked = _over = False

    def __post_init__(self) -> None:
        self._memory = PassMemory(lambda: [self.source])

    def walk(self, epoch: int, at: FeedPosition) -> Iterator[Step]:
        if not self._walked:
            self._restore_sampler(at)
        self._walked = True
        return iter(()) if _OVER in at else self._steps_after(epoch, at)

    def _restore_sampler(self, at: FeedPosition) -> None:
        """Give the sampler the state that it had when the pass of `at` began,
        or after the pass if it was over.
        """
        before = at.get("before")
        if before is not None:
            self._memory.restore(before.get(_MEMORY, {}))
            if _OVER not in before:
                # differs if the sampler depends on earlier epochs
                self._steps_after(before["epoch"], before)
        self._memory.restore(at.get(_MEMORY, {}))

    def _steps_after(self, epoch: int, at: FeedPosition) -> Iterator[Step]:
        steps = self._steps(epoch)
        _skip_to(steps, at)
        return steps

    def end_position(self) -> dict[str, Any]:
        carried = self._memory.current_values() if self._over else {}
        return {_MEMORY: carried, _OVER: True} if carried else {}

    def describe(self) -> LoaderFacts:
        return {"sampler": type(self.source).__name__, "order": "replayed"}

    def _steps(self, epoch: int) -> Iterator[Step]:
        digest = xxhash.xxh3_128()
        samples, self._over = 0, False
        self._memory.begin_pass()
        carried: dict[str, Any] | None = None
        for batches, indices in enumerate(self._items(epoch), 1):
            digest.update(repr(_plain_indices(indices)).encode())
            samples += _count_samples(indices)
            position = position_of(epoch, batches, samples) | {"digest": digest.hexdigest()}
            if carried is None:  # the sampler's state at the pass's beginning, if passes change it
                carried = self._memory.values_before_pass()
            if carried:
                position[_MEMORY] = carried
            yield Step(_with_epoch(indices, epoch), position)
        self._over = True

    def _items(self, epoch: int) -> Iterator[Any]:
        return _draw_items(self.source, self.seed, epoch)


class DealtPlan(ReplayPlan):
    """Batches that accelerate deals out to its processes, from a batch sampler of torch's that all
    of them draw alike.

    Another number of them deals out what is left of an epoch, if a step takes as many samples of
    all processes as before.
    """

    # what was done of the epoch before these processes dealt: batches, samples, their digest
    _began: tuple[int, int, str] = (0, 0, "")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole = getattr(self.source, "batch_sampler", self.source)  # of all processes
        parts = getattr(self.source, "num_processes", 1)
        split = getattr(self.source, "split_batches", False)
        self._together = self._whole.batch_size * (1 if split else parts)
        self._to = [parts, self._whole.batch_size, split]

    def walk(self, epoch: int, at: FeedPosition) -> Iterator[Step]:
        was = at.get(_DEALT, {}).get("together", self._together)
        if was != self._together:
            raise Mismatch(
                f"{at['batches']} batches into epoch {epoch} a step took {was} samples of all"
                f" processes, and would take {self._together}: in the middle of an epoch keep the"
                " number of processes times that of samples for each"
            )
        return super().walk(epoch, at)

    def describe(self) -> LoaderFacts:
        return {**super().describe(), "dealt": type(self._whole.sampler).__name__}

    def _steps_after(self, epoch: int, at: FeedPosition) -> Iterator[Step]:
        dealt = at.get(_DEALT)
        if dealt is None:  # an epoch begins, or an older version has saved it
            self._began = 0, 0, ""
            return super()._steps_after(epoch, at)
        alike = dealt["to"] == self._to
        here = at["batches"], dealt["samples"], dealt["digest"]
        self._began = tuple(dealt["began"]) if alike else here
        steps = self._steps(epoch)
        if alike:
            _skip_to(steps, at, _DEALT)
            return steps
        return itertools.chain([*itertools.islice(steps, 1)], steps)  # the first one compares

    def _steps(self, epoch: int) -> Iterator[Step]:
        done, before, digest = self._began
        own = {"to": self._to, "together": self._together, "began": [done, before, digest]}
        for indices, position in super()._steps(epoch):
            taken = self._rest.note_taken(before + position["batches"] * self._together)
            batches = done + position["batches"]
            yield Step(indices, {**position, "batches": batches, _DEALT: {**own, **taken}})

    def _items(self, epoch: int) -> Iterator[Any]:
        self._rest = source = _Rest(self._whole, *self._began[1:])
        if self._whole is not self.source:
            source = copy(self.source)
            source.batch_sampler = self._rest
        return _draw_items(source, self.seed, epoch)


class _Rest:
    """The batches of torch's BatchSampler without its first samples, whose digest is known."""

    def __init__(self, source: BatchSampler, skipped: int, digest: str) -> None:
        self.batch_size, self.drop_last = source.batch_size, source.drop_last
        self.sampler, self._skipped, self._expected = source.sampler, skipped, digest
        self._digest, self._taken = xxhash.xxh3_128(), 0
        self._drawn = deque[Any]()

    def __iter__(self) -> Iterator[list[Any]]:
        indices = self._note_drawn()
        skipped = [*itertools.islice(indices, self._skipped)]
        if skipped and self.note_taken(self._skipped)["digest"] != self._expected:
            raise Mismatch(
                f"the sampler's order cannot be replayed: its first {len(skipped)} indices are"
                f" others than before. {other_samples()}"
            )
        while batch := [*itertools.islice(indices, self.batch_size)]:
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def _note_drawn(self) -> Iterator[Any]:
        for index in self.sampler:
            self._drawn.append(index)
            yield index

    def note_taken(self, samples: int) -> dict[str, Any]:
        """Return the number and the digest of the order's first `samples`, or of all."""
        while self._taken < samples and self._drawn:
            self._digest.update(f"{_plain_indices(self._drawn.popleft())} ".encode())
            self._taken += 1
        return {"samples": self._taken, "digest": self._digest.hexdigest()}


@dataclass
class StatefulPlan(BatchPlan):
    """Batches of a sampler that keeps its own state: `keeper` is `source`, or the sampler that
    torch's BatchSampler wraps.

    Each epoch begins from the state after the last *consumed* batch, in an uninterrupted run as
    after a resume. A sampler may reset itself before it yields its last batch. Its state alone then
    does not show that the epoch is over. Where a batch may be the last, the next one is therefore
    drawn ahead.
    """

    source: Any
    keeper: Any
    seed: int

    carries = True

    def walk(self, epoch: int, at: FeedPosition) -> Iterator[Step]:
        before = at if at.get("ended") else at.get("before")
        if before is not None and self._finish_epoch(before):
            at = {**at, "sampler": before["sampler"]}
        return iter(()) if at.get("ended") else self._steps(epoch, at)

    def describe(self) -> LoaderFacts:
        return {"sampler": type(self.keeper).__name__, "order": "its own state"}

    def _finish_epoch(self, before: FeedPosition) -> bool:
        """End the epoch of `before`.
        Return whether its state is already the next epoch's beginning.
        """
        further = next(self._draw_batches(before), None) is not None
        return further and bool(before.get("ended"))

    def _steps(self, epoch: int, at: FeedPosition) -> Iterator[Step]:
        batches, samples = at["batches"], at["samples"]
        drawn = self._draw_batches(at)
        following = next(drawn, None)
        while following is not None:
            indices, following = following, None
            batches += 1
            samples += _count_samples(indices)
            position = position_of(epoch, batches, samples) | {
                "sampler": deepcopy(self.keeper.state_dict())
            }
            ahead = self._may_be_last(indices, batches)
            if ahead:
                following = next(drawn, None)
                position |= {} if following is not None else {"ended": True}
            yield Step(_with_epoch(indices, epoch), position)
            if not ahead:
                following = next(drawn, None)

    def _may_be_last(self, indices: Any, batches: int) -> bool:
        if self.source is not self.keeper and _count_samples(indices) < self.source.batch_size:
            return True
        length = known_length(self.source)
        return length is not None and batches >= length

    def _draw_batches(self, at: FeedPosition) -> Iterator[Any]:
        def load() -> None:
            if "sampler" in at:
                self.keeper.load_state_dict(deepcopy(at["sampler"]))

        return _draw_items(self.source, self.seed, at["epoch"], load)


def plan_for(loader: DataLoader[Any], seed: int, inside: Any = None) -> BatchPlan:
    """Return the plan of a loader; `inside`: its batch sampler, if the loader's own batch sampler
    repeats that one without end.
    """
    source: Any = inside or (
        loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    )
    stream = loader.dataset
    if isinstance(stream, SeekableBatches) and stream.makes_batches:
        _require_no_batching(loader)
        return StreamPlan(stream)
    # another subclass may batch differently
    plain = type(source) in {BatchSampler, torchdata_class("BatchSampler")}
    sampler = source.sampler if plain else source
    if isinstance(sampler, InterruptibleDistributedGroupedBatchSampler) and _iterates_as(sampler):
        return GroupPlan(sampler)
    order = _order_of(sampler, seed)
    if order is not None and (plain or source is loader.sampler):
        size, drop_last = (source.batch_size, source.drop_last) if plain else (None, False)
        name = "holdfast" if order is sampler else type(sampler).__name__
        return OrderPlan(order, size, drop_last=drop_last, name=name)
    # it counts consumed samples: its state does not depend on what it has yielded
    counts = hasattr(sampler, "advance")
    if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict") and not counts:
        return StatefulPlan(source, sampler, seed)
    whole = source.batch_sampler if _is_accelerates(source, "BatchSamplerShard") else source
    dealt = whole is not source or _is_accelerates(sampler, "SeedableRandomSampler")
    return (DealtPlan if dealt and type(whole) is BatchSampler else ReplayPlan)(source, seed)


def _is_accelerates(value: Any, kind: str) -> bool:
    return f"{type(value).__module__}.{type(value).__name__}" == f"accelerate.data_loader.{kind}"


def _require_no_batching(loader: DataLoader[Any]) -> None:
    """Check that the loader takes the batches of a stream as they are, in their order."""
    if loader.batch_size is not None or loader.batch_sampler is not None:
        raise UsageError(
            "this stream makes batches, and so does its loader: give the loader"
            " batch_size=None, or the stream no batch_size"
        )
    if type(loader.sampler) is not SequentialSampler:
        raise UsageError(
            f"a stream has an order of its own, and shares it out between ranks: the loader's"
            f" {type(loader.sampler).__name__} would do so again. Remove it, and shuffle=True;"
            " Lightning's Trainer needs use_distributed_sampler=False"
        )


def _order_of(sampler: Any, seed: int) -> BatchOrder | None:
    """Return the order that replaces `sampler`: itself if it is Holdfast's, one like torch's
    DistributedSampler for that, and one of (seed, epoch) for torch's two plain samplers.
    """
    if isinstance(sampler, Sampler | InterruptibleDistributedSampler):
        return sampler if _iterates_as(sampler) else None
    if type(sampler) is DistributedSampler:
        split = sampler.num_replicas, sampler.rank, sampler.shuffle, sampler.seed, sampler.drop_last
        return InterruptibleDistributedSampler(sampler.dataset, *split)  # type: ignore[arg-type]
    if type(sampler) is SequentialSampler:
        return Sampler(sampler.data_source, seed, shuffle=False)
    whole = (
        type(sampler) in {RandomSampler, torchdata_class("RandomSampler")}
        and not sampler.replacement
    )
    if whole and sampler.num_samples == len(sampler.data_source):
        return Sampler(sampler.data_source, seed)
    return None


def _iterates_as(sampler: Any) -> bool:
    """Whether the sampler iterates like Holdfast's own class: a user's subclass may not."""
    ours = Sampler, InterruptibleDistributedSampler, InterruptibleDistributedGroupedBatchSampler
    return any(type(sampler).__iter__ is kind.__iter__ for kind in ours)


def _rank_facts(world: int, batch_size: int | None) -> dict[str, Any]:
    """Facts of a loader that is one of several."""
    return {"world": world, "global_batch_size": world * (batch_size or 1)}


def _draw_items(
    source: Any, seed: int, epoch: int, load: Callable[[], None] = lambda: None
) -> Iterator[Any]:
    """Yield the items of `source` for `epoch` after `load` has run;
    the global generators do not advance.
    """
    with rng.seeded_scope(derive_key("sampler", seed, epoch)):
        _set_epoch(source, seed, epoch)
        load()
        indices, stream = iter(source), rng.capture()
    while True:
        with rng.seeded_scope(0):
            rng.restore(stream)
            batch = next(indices, _NOTHING)
            stream = rng.capture()
        if batch is _NOTHING:
            return
        yield batch


def _set_epoch(source: Any, seed: int, epoch: int) -> None:
    """Set the epoch of the sampler and of the one inside it."""
    samplers: tuple[Any, Any] = (source, getattr(source, "sampler", None))
    for sampler in samplers:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        if isinstance(getattr(sampler, "generator", None), torch.Generator):
            sampler.generator.manual_seed(derive_key("sampler", seed, epoch))


def _skip_to(steps: Iterator[Step], position: FeedPosition, key: str | None = None) -> None:
    """Skip to a position, and compare the digest in it; `key`: under which it lies there."""
    count, digest = position["batches"], (position[key] if key else position).get("digest")
    if not count:
        return
    last = next((each.position for each in steps if each.position["batches"] >= count), None)
    if last is None or digest not in {None, (last[key] if key else last)["digest"]}:
        raise Mismatch(
            "the sampler's order cannot be replayed: "
            f"{count} batches into epoch {position['epoch']} it yields other"
            f" indices than before. {other_samples()}"
        )


def position_of(epoch: int, batches: int, samples: int) -> dict[str, Any]:
    return {"epoch": epoch, "batches": batches, "samples": samples}


def _count_samples(indices: Any) -> int:
    return len(indices) if hasattr(indices, "__len__") else 1


def _with_epoch(indices: Any, epoch: int) -> Any:
    """Return the same indices; the whole numbers among them carry the epoch."""
    if isinstance(indices, Integral):
        return Index(int(indices), epoch)
    if type(indices) in {list, tuple}:
        return type(indices)(_with_epoch(index, epoch) for index in indices)
    return indices


def _plain_indices(indices: Any) -> Any:
    """Return the indices in a form whose repr() is the same in every process and version."""
    if type(indices) in {list, tuple}:
        return [_plain_indices(index) for index in indices]
    return indices.tolist() if hasattr(indices, "tolist") else indices
