"""Plans: the order in which a DataLoader's twin takes its samples, and how to come back into the middle of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from numbers import Integral
from typing import Any, NamedTuple, Protocol

import torch
import xxhash
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from ..data import groups
from ..data.order import key
from ..data.sampler import Sampler
from ..data.seeded import Index
from ..errors import Mismatch
from ..state import rng
from .samplers import InterruptibleDistributedGroupedBatchSampler, InterruptibleDistributedSampler
from .twin import torchdatas


class BatchOrder(Protocol):
    """An order that can be entered anywhere, by several ranks together."""

    @property
    def world(self) -> int: ...
    def indices(self, epoch: int, start: int = 0) -> Iterator[Index]: ...
    def seek(self, epoch: int, position: int) -> None: ...
    def describe(self) -> dict[str, Any]: ...


class Step(NamedTuple):
    """One batch of indices, and the position once the loop has consumed it."""

    indices: Any
    position: Mapping[str, Any]


class BatchPlan(Protocol):
    carries: bool  # the sampler takes something from epoch to epoch, or might

    def walk(self, epoch: int, at: Mapping[str, Any]) -> Iterator[Step]:
        """The steps of `epoch` from `at`; whatever has to be skipped has been on return.

        At an epoch's start `at["before"]`, if there is one, is what was consumed last of the epoch before.
        """
        ...

    def consumed(self, position: Mapping[str, Any]) -> None:
        """The loop has taken the batch that ends at `position`."""
        ...

    def describe(self) -> Mapping[str, Any]: ...


class OrderPlan:
    """Batches along an order of ours. `samples` of a position are those of all ranks that take it together."""

    carries = False

    def __init__(self, order: BatchOrder, batch_size: int | None, *, drop_last: bool, name: str) -> None:
        self._order = order
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._name = name

    def walk(self, epoch: int, at: Mapping[str, Any]) -> Iterator[Step]:
        if "digest" in at and self._order.world > 1:
            raise Mismatch(
                f"{at['batches']} batches into epoch {epoch} this sampler was drawn again, which counts one rank's samples;"
                " its place among all ranks is not known: end the epoch with the version or the sampler that began it"
            )
        self._order.seek(epoch, at["samples"])
        return self._steps(epoch, at["batches"], at["samples"])

    def consumed(self, position: Mapping[str, Any]) -> None:
        self._order.seek(position["epoch"], position["samples"])  # true even if the user saves the sampler's state

    def describe(self) -> Mapping[str, Any]:
        order = self._order.describe()
        if not isinstance(self._order, Sampler):
            return order | {"sampler": self._name} | _ranks(self._order.world, self._batch_size)
        if self._name != "holdfast":
            del order["seed"]  # the run's own
        return order | {"sampler": self._name}

    def _steps(self, epoch: int, batches: int, samples: int) -> Iterator[Step]:
        size = self._batch_size or 1
        indices = self._order.indices(epoch, samples)
        while batch := list(itertools.islice(indices, size)):
            if self._drop_last and len(batch) < size:
                return
            batches += 1
            samples += len(batch) * self._order.world
            yield Step(batch if self._batch_size else batch[0], position_of(epoch, batches, samples))


class GroupPlan:
    """Batches of our grouped batch sampler; a position says how many batches of which size all ranks have taken."""

    carries = False

    def __init__(self, sampler: InterruptibleDistributedGroupedBatchSampler) -> None:
        self._sampler = sampler

    def walk(self, epoch: int, at: Mapping[str, Any]) -> Iterator[Step]:
        self._sampler.seek(epoch, at.get("taken", []))
        return self._steps(epoch, at["batches"], at["samples"], self._sampler.taken)

    def consumed(self, position: Mapping[str, Any]) -> None:
        self._sampler.seek(position["epoch"], position["taken"])

    def describe(self) -> Mapping[str, Any]:
        sampler = self._sampler
        size = {"sampler": type(sampler).__name__, "batch_size": sampler.batch_size, "drop_last": sampler.drop_last}
        return sampler.describe() | size | _ranks(sampler.world, sampler.batch_size)

    def _steps(self, epoch: int, batches: int, samples: int, taken: groups.Taken) -> Iterator[Step]:
        for number, batch in enumerate(self._sampler.batches(epoch, taken), 1):
            samples += len(batch) * self._sampler.world
            now = groups.further(taken, self._sampler.together, number)
            position = position_of(epoch, batches + number, samples) | {"taken": [[*pair] for pair in now]}
            yield Step(batch, position)


class ReplayPlan:
    """Batches as a sampler of the user's hands them out; a resume draws the indices again and compares them.

    The sampler draws from a stream of its own, begun anew each epoch, as do torch generators that it keeps.
    """

    carries = True

    def __init__(self, source: Any, seed: int) -> None:
        self._source = source
        self._seed = seed
        self._walked = False

    def walk(self, epoch: int, at: Mapping[str, Any]) -> Iterator[Step]:
        if "before" in at and not self._walked:
            _replay(self._steps(at["before"]["epoch"]), at["before"])  # a memory of epochs gone by would show here
        self._walked = True
        steps = self._steps(epoch)
        _replay(steps, at)
        return steps

    def consumed(self, position: Mapping[str, Any]) -> None:
        pass

    def describe(self) -> Mapping[str, Any]:
        return {"sampler": type(self._source).__name__, "order": "replayed"}

    def _steps(self, epoch: int) -> Iterator[Step]:
        digest = xxhash.xxh3_128()
        samples = 0
        for batches, indices in enumerate(_drawn(self._source, self._seed, epoch), 1):
            digest.update(repr(_plain(indices)).encode())
            samples += _samples(indices)
            position = position_of(epoch, batches, samples) | {"digest": digest.hexdigest()}
            yield Step(_with_epoch(indices, epoch), position)


class StatefulPlan:
    """Batches of a sampler that keeps its own state: `keeper` is `source`, or what torch's BatchSampler wraps.

    Each epoch begins from the state after the last *consumed* batch, in a run of one piece as after a resume. A sampler
    may go back to its beginning before its last batch is handed out, so that its state alone does not say that the epoch
    is over: where a batch may be the last, the next one is drawn ahead.
    """

    carries = True

    def __init__(self, source: Any, keeper: Any, seed: int) -> None:
        self._source = source
        self._keeper = keeper
        self._seed = seed

    def walk(self, epoch: int, at: Mapping[str, Any]) -> Iterator[Step]:
        before = at if at.get("ended") else at.get("before")
        if before is not None and self._leave(before):
            at = {**at, "sampler": before["sampler"]}
        return iter(()) if at.get("ended") else self._steps(epoch, at)

    def consumed(self, position: Mapping[str, Any]) -> None:
        pass

    def describe(self) -> Mapping[str, Any]:
        return {"sampler": type(self._keeper).__name__, "order": "its own state"}

    def _leave(self, before: Mapping[str, Any]) -> bool:
        """End the epoch of `before`; whether its state is already the next epoch's beginning."""
        further = next(self._drawn(before), None) is not None
        return further and bool(before.get("ended"))

    def _steps(self, epoch: int, at: Mapping[str, Any]) -> Iterator[Step]:
        batches, samples = at["batches"], at["samples"]
        drawn = self._drawn(at)
        following = next(drawn, None)
        while following is not None:
            indices, following = following, None
            batches += 1
            samples += _samples(indices)
            position = position_of(epoch, batches, samples) | {"sampler": deepcopy(self._keeper.state_dict())}
            ahead = self._may_be_last(indices, batches)
            if ahead:
                following = next(drawn, None)
                position |= {} if following is not None else {"ended": True}
            yield Step(_with_epoch(indices, epoch), position)
            if not ahead:
                following = next(drawn, None)

    def _may_be_last(self, indices: Any, batches: int) -> bool:
        if self._source is not self._keeper and _samples(indices) < self._source.batch_size:
            return True
        try:
            return batches >= len(self._source)
        except (TypeError, NotImplementedError):
            return False

    def _drawn(self, at: Mapping[str, Any]) -> Iterator[Any]:
        def load() -> None:
            if "sampler" in at:
                self._keeper.load_state_dict(deepcopy(at["sampler"]))

        return _drawn(self._source, self._seed, at["epoch"], load)


def plan_for(loader: DataLoader[Any], seed: int) -> BatchPlan:
    source: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    plain = type(source) in {BatchSampler, torchdatas("BatchSampler")}  # another subclass may batch in its own way
    sampler = source.sampler if plain else source
    if isinstance(sampler, InterruptibleDistributedGroupedBatchSampler) and _iterates_as(sampler):
        return GroupPlan(sampler)
    order = _order(sampler, seed)
    if order is not None and (plain or loader.batch_sampler is None):
        size, drop_last = (source.batch_size, source.drop_last) if plain else (None, False)
        name = "holdfast" if order is sampler else type(sampler).__name__
        return OrderPlan(order, size, drop_last=drop_last, name=name)
    counts = hasattr(sampler, "advance")  # what the loop consumed: its state says nothing of what it handed out
    if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict") and not counts:
        return StatefulPlan(source, sampler, seed)
    return ReplayPlan(source, seed)


def _order(sampler: Any, seed: int) -> BatchOrder | None:
    """The order that stands for `sampler`: itself if it is ours, one like torch's DistributedSampler for that one, and
    one of (seed, epoch) for torch's two plain ones.
    """
    if isinstance(sampler, Sampler | InterruptibleDistributedSampler):
        return sampler if _iterates_as(sampler) else None
    if type(sampler) is DistributedSampler:
        split = sampler.num_replicas, sampler.rank, sampler.shuffle, sampler.seed, sampler.drop_last
        return InterruptibleDistributedSampler(sampler.dataset, *split)  # type: ignore[arg-type]
    if type(sampler) is SequentialSampler:
        return Sampler(sampler.data_source, seed, shuffle=False)
    whole = type(sampler) in {RandomSampler, torchdatas("RandomSampler")} and not sampler.replacement
    if whole and sampler.num_samples == len(sampler.data_source):
        return Sampler(sampler.data_source, seed)
    return None


def _iterates_as(sampler: Any) -> bool:
    """Whether a sampler of ours hands out what we made it to: a subclass of the user's may not."""
    ours = Sampler, InterruptibleDistributedSampler, InterruptibleDistributedGroupedBatchSampler
    return any(type(sampler).__iter__ is kind.__iter__ for kind in ours)


def _ranks(world: int, batch_size: int | None) -> dict[str, Any]:
    """Facts of a loader that is one of several."""
    return {"world": world, "global_batch_size": world * (batch_size or 1)}


def _drawn(source: Any, seed: int, epoch: int, load: Callable[[], None] = lambda: None) -> Iterator[Any]:
    """What `source` hands out for `epoch` once `load` has run, while the global generators stand still."""
    stream = _Stream(key("sampler", seed, epoch))
    with stream:
        _begin(source, seed, epoch)
        load()
        indices = iter(source)
    while True:
        with stream:
            try:
                batch = next(indices)
            except StopIteration:
                return
        yield batch


def _begin(source: Any, seed: int, epoch: int) -> None:
    """Tell the sampler, and the one inside it, which epoch this is."""
    samplers: tuple[Any, Any] = (source, getattr(source, "sampler", None))
    for sampler in samplers:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        if isinstance(getattr(sampler, "generator", None), torch.Generator):
            sampler.generator.manual_seed(key("sampler", seed, epoch))


def _replay(steps: Iterator[Step], position: Mapping[str, Any]) -> None:
    count = position["batches"]
    done = list(itertools.islice(steps, count - 1, count)) if count else []
    digest = position.get("digest")
    if count and (not done or digest not in {None, done[0].position["digest"]}):
        raise Mismatch(
            f"the sampler's order cannot be replayed: {count} batches into epoch {position['epoch']} it hands out other"
            " indices than before; give it set_epoch(epoch) or state_dict()"
        )


def position_of(epoch: int, batches: int, samples: int) -> dict[str, Any]:
    return {"epoch": epoch, "batches": batches, "samples": samples}


def _samples(indices: Any) -> int:
    return len(indices) if hasattr(indices, "__len__") else 1


def _with_epoch(indices: Any, epoch: int) -> Any:
    """The same indices; the whole numbers among them carry the epoch."""
    if isinstance(indices, Integral):
        return Index(int(indices), epoch)
    if type(indices) in {list, tuple}:
        return type(indices)(_with_epoch(index, epoch) for index in indices)
    return indices


def _plain(indices: Any) -> Any:
    """Indices whose repr() is the same in every process and version."""
    if type(indices) in {list, tuple}:
        return [_plain(index) for index in indices]
    return indices.tolist() if hasattr(indices, "tolist") else indices


class _Stream:
    """The global generators as a sampler sees them: begun from `seed`, swapped in while it draws."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: Any = None
        self._outside: Any = None

    def __enter__(self) -> None:
        self._outside = rng.capture()
        if self._inside is None:
            rng.seed(self._seed)
        else:
            rng.restore(self._inside)

    def __exit__(self, *exception: object) -> None:
        self._inside = rng.capture()
        rng.restore(self._outside)
