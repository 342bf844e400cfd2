"""How a loop walks torch's DataLoader: through a twin with the user's settings and an order that can be come back to.

The twin is made once, so that persistent workers persist. It has a batch sampler and a generator of Holdfast's own:
neither making nor iterating it draws from the global generators. Its batch sampler follows one of three plans:

    OrderPlan      no sampler, shuffle, or a Holdfast Sampler: the place in the epoch's order; any start for free
    StatefulPlan   a sampler with state_dict(): its state after each batch
    ReplayPlan     any other sampler: its indices are drawn again (not the data), and compared
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import signal
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from multiprocessing import resource_tracker
from numbers import Integral
from typing import Any, NamedTuple, Protocol, cast

import torch
import xxhash
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from ..data.feed import Feed, ReplayFeed, StatefulFeed, facts, reached, skip
from ..data.order import key
from ..data.sampler import Sampler
from ..data.seeded import Index, Seeded, in_worker
from ..errors import Mismatch
from ..state import rng

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def feed_for(loader: Any, seed: int) -> Feed | None:
    """The feed of a DataLoader; None for what is none, keeps its own state, or iterates in its own way."""
    if not isinstance(loader, DataLoader) or hasattr(loader, "state_dict"):
        return None
    if type(loader).__iter__ is not DataLoader.__iter__ or type(loader)._get_iterator is not DataLoader._get_iterator:  # noqa: SLF001
        return None
    if not isinstance(loader.dataset, IterableDataset):
        return DataLoaderFeed(loader, seed)
    if loader.num_workers == 0 and hasattr(loader.dataset, "state_dict"):
        return StatefulFeed(loader, loader.dataset)
    return IterableFeed(loader, seed)


class Step(NamedTuple):
    """One batch of indices, and the position once the loop has consumed it."""

    indices: Any
    position: Mapping[str, Any]


class Plan(Protocol):
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


class DataLoaderFeed:
    """A DataLoader over a dataset with indices."""

    replays = False

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._loader = loader
        self._seed = seed
        self._plan = _plan(loader, seed)
        self._steps = _Steps()
        self._twin = _twin(loader, self._steps)
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=8)
        self._last: Mapping[str, Any] | None = None

    def open(self, epoch: int, position: Mapping[str, Any] | None) -> Iterator[Any]:
        at = position if position is not None and reached(position, epoch) else self._start(epoch, position)
        self._steps.begin(self._plan.walk(epoch, at))
        self._recent.clear()
        self._recent.append(at)
        return self._consumed(_iterate(self._twin, key("workers", self._seed, epoch, at["batches"])))

    def position(self, consumed: int) -> Mapping[str, Any]:
        found = [recent for recent in self._recent if recent["batches"] == consumed]
        if not found:
            raise ValueError(f"{consumed} batches consumed, but the loader is at {self._recent[-1]['batches']}")
        return found[0]

    def describe(self) -> Mapping[str, Any]:
        return {**_facts(self._loader), **self._plan.describe()}

    def _start(self, epoch: int, position: Mapping[str, Any] | None) -> Mapping[str, Any]:
        before = self._last if position is None else position
        if before is not None and not before["batches"]:
            before = before.get("before")
        start = _position(epoch, 0, 0)
        return start if before is None or not self._plan.carries else {**start, "before": before}

    def _consumed(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            position = self._last = self._steps.pending.popleft()
            self._recent.append(position)
            self._plan.consumed(position)
            yield batch


class IterableFeed(ReplayFeed):
    """A DataLoader over an IterableDataset: only the dataset knows its order, so it is read again."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._twin = _twin(loader, None)
        self._loader = loader
        self._seed = seed
        super().__init__(self._twin)

    def open(self, epoch: int, position: Mapping[str, Any] | None) -> Iterator[Any]:
        self._epoch = epoch
        batches = _iterate(self._twin, key("workers", self._seed, epoch))
        skip(batches, reached(position, epoch))
        return batches

    def describe(self) -> Mapping[str, Any]:
        return _facts(self._loader)


class OrderPlan:
    """Batches along a Holdfast Sampler's order."""

    carries = False

    def __init__(self, order: Sampler, batch_size: int | None, *, drop_last: bool, name: str) -> None:
        self._order = order
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._name = name

    def walk(self, epoch: int, at: Mapping[str, Any]) -> Iterator[Step]:
        self._order.seek(epoch, at["samples"])
        return self._steps(epoch, at["batches"], at["samples"])

    def consumed(self, position: Mapping[str, Any]) -> None:
        self._order.seek(position["epoch"], position["samples"])  # true even if the user saves the sampler's state

    def describe(self) -> Mapping[str, Any]:
        order = self._order.describe()
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
            samples += len(batch)
            yield Step(batch if self._batch_size else batch[0], _position(epoch, batches, samples))


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
            position = _position(epoch, batches, samples) | {"digest": digest.hexdigest()}
            yield Step(_with_epoch(indices, epoch), position)


class StatefulPlan:
    """Batches of a sampler that keeps its own state: `keeper` is `source`, or what torch's BatchSampler wraps.

    Each epoch begins from the state after the last *consumed* batch, in a run of one piece as after a resume.
    """

    carries = True

    def __init__(self, source: Any, keeper: Any, seed: int) -> None:
        self._source = source
        self._keeper = keeper
        self._seed = seed

    def walk(self, epoch: int, at: Mapping[str, Any]) -> Iterator[Step]:
        if "before" in at:
            next(self._drawn(at["before"]), None)  # ends that epoch
        return self._steps(epoch, at)

    def consumed(self, position: Mapping[str, Any]) -> None:
        pass

    def describe(self) -> Mapping[str, Any]:
        return {"sampler": type(self._keeper).__name__, "order": "its own state"}

    def _steps(self, epoch: int, at: Mapping[str, Any]) -> Iterator[Step]:
        batches, samples = at["batches"], at["samples"]
        for indices in self._drawn(at):
            batches += 1
            samples += _samples(indices)
            position = _position(epoch, batches, samples) | {"sampler": deepcopy(self._keeper.state_dict())}
            yield Step(_with_epoch(indices, epoch), position)

    def _drawn(self, at: Mapping[str, Any]) -> Iterator[Any]:
        def load() -> None:
            if "sampler" in at:
                self._keeper.load_state_dict(deepcopy(at["sampler"]))

        return _drawn(self._source, self._seed, at["epoch"], load)


def _plan(loader: DataLoader[Any], seed: int) -> Plan:
    source: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    plain = type(source) is BatchSampler  # a subclass may batch in its own way
    sampler = source.sampler if plain else source
    order = _order(sampler, seed)
    if order is not None and (plain or loader.batch_sampler is None):
        size, drop_last = (source.batch_size, source.drop_last) if plain else (None, False)
        name = "holdfast" if order is sampler else type(sampler).__name__
        return OrderPlan(order, size, drop_last=drop_last, name=name)
    if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
        return StatefulPlan(source, sampler, seed)
    return ReplayPlan(source, seed)


def _order(sampler: Any, seed: int) -> Sampler | None:
    """The order that stands for `sampler`: itself if it is ours, one of (seed, epoch) for torch's two plain ones."""
    if isinstance(sampler, Sampler) and type(sampler).__iter__ is Sampler.__iter__:
        return sampler
    if type(sampler) is SequentialSampler:
        return Sampler(sampler.data_source, seed, shuffle=False)
    whole = type(sampler) is RandomSampler and not sampler.replacement
    if whole and sampler.num_samples == len(sampler.data_source):
        return Sampler(sampler.data_source, seed)
    return None


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


def _position(epoch: int, batches: int, samples: int) -> dict[str, Any]:
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


class _Steps:
    """The twin's batch sampler: hands out one walk, and keeps the positions of the batches that are under way."""

    def __init__(self) -> None:
        self.pending: deque[Mapping[str, Any]] = deque()
        self._walk: Iterator[Step] = iter(())

    def begin(self, walk: Iterator[Step]) -> None:
        self._walk = walk
        self.pending.clear()

    def __iter__(self) -> _Steps:
        return self  # a loader with workers asks for two iterators and drops the first one unused

    def __next__(self) -> Any:
        step = next(self._walk)
        self.pending.append(step.position)
        return step.indices


def _twin(loader: DataLoader[Any], steps: _Steps | None) -> DataLoader[Any]:
    if loader.num_workers and not loader.in_order:
        warnings.warn("in_order=False: batches stay in order, or no run could be repeated", UserWarning, stacklevel=2)
    settings: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if steps is not None:
        settings = (
            {"batch_sampler": steps} if loader.batch_sampler is not None else {"sampler": steps, "batch_size": None}
        )
    if loader.num_workers:
        settings |= {
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    if loader.pin_memory_device:  # deprecated: even naming its default may warn one day
        settings["pin_memory_device"] = loader.pin_memory_device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own loader has said it all
        return DataLoader(
            loader.dataset,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=_WorkerInit(loader.worker_init_fn),
            persistent_workers=loader.persistent_workers,
            generator=torch.Generator(),
            **settings,
        )


class _WorkerInit:
    """Runs in a worker before its first sample: stopping is the main process's business."""

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users

    def __call__(self, worker: int) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        in_worker()
        if self._users is not None:
            self._users(worker)


_alive: weakref.WeakSet[Any] = weakref.WeakSet()  # iterators with workers
_workers: weakref.WeakSet[Any] = weakref.WeakSet()  # their processes
_owner = os.getpid()


def _iterate(twin: DataLoader[Any], seed: int) -> Iterator[Any]:
    """An iterator of the twin; its workers, while they start, are deaf to the signals that they are to ignore."""
    twin.generator.manual_seed(seed)
    if not twin.num_workers:
        return iter(twin)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # children inherit it, fork and spawn alike
    try:
        if (twin.multiprocessing_context or multiprocessing).get_start_method() != "fork":
            resource_tracker.ensure_running()  # begun by the first worker instead, it would unblock what is blocked
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        batches: Any = iter(twin)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _alive.add(batches)
    _workers.update(batches._workers)  # noqa: SLF001
    return cast("Iterator[Any]", batches)


@atexit.register
def _end_workers() -> None:
    """Ends the workers before multiprocessing would: it sends SIGTERM, which they ignore, and waits for ever."""
    if os.getpid() != _owner:
        return
    for batches in list(_alive):
        with suppress(Exception):  # the interpreter is ending; the next line ends whoever is left
            batches._shutdown_workers()  # noqa: SLF001
    for worker in list(_workers):
        with suppress(ValueError):
            worker.kill()


def _facts(loader: DataLoader[Any]) -> dict[str, Any]:
    found = facts(loader) | {"dataset": _dataset_name(loader.dataset)}
    found.pop("length", None)  # of batches, where ours is of samples
    with suppress(TypeError, NotImplementedError):
        found["length"] = len(loader.dataset)  # type: ignore[arg-type]
    return found


def _dataset_name(dataset: Any) -> str:
    inner = dataset.dataset if isinstance(dataset, Seeded) else None
    return type(dataset).__name__ if inner is None else f"Seeded({type(inner).__name__})"
