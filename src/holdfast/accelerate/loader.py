"""The feed of a loader that `Accelerator.prepare` has returned.

accelerate's own iteration walks it: device placement, `end_of_dataloader`, `remainder`,
synchronised random numbers, batches that process 0 dispatches. Only the torch loader inside is
replaced by its feed, which can begin anywhere.

accelerate fetches ahead of what it hands out, to know which batch is the last. The random numbers
before each fetch are noted, and a resume fetches the same batches again under the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from accelerate.data_loader import (
    BatchSamplerShard,
    DataLoaderDispatcher,
    DataLoaderShard,
    SkipBatchSampler,
    SkipDataLoader,
)
from accelerate.utils import synchronize_rng_states

from ..data import feed as feeds
from ..data.facts import Feed, FeedPosition, LoaderFacts, batches_before
from ..data.promise import UnprovenCode, code_digest
from ..errors import UsageError
from ..state import rng
from ..trainers.known import NAMES
from ..trainers.names import require
from .accelerator import AcceleratorMembers

_END = object()


def feed_for(loader: Any, seed: int) -> Feed | None:
    """Return the feed of a prepared loader; None for other loaders.

    Raises:
        UsageError: it begins in the middle, keeps a position of its own, differs in length between
            processes, or fills its last batch up from the first one.
    """
    if not isinstance(loader, DataLoaderShard | DataLoaderDispatcher | SkipDataLoader):
        return None
    if getattr(loader, "skip_batches", 0) or isinstance(loader.batch_sampler, SkipBatchSampler):
        raise UsageError(
            "run.batches() goes on where the run was: "
            "give it the prepared loader itself, without skip_first_batches"
        )
    if loader.use_stateful_dataloader:
        raise UsageError(
            "run.batches() keeps the position of a prepared loader: "
            "remove use_stateful_dataloader=True"
        )
    shards = [
        each
        for each in (loader.batch_sampler, loader.sampler)
        if isinstance(each, BatchSamplerShard)
    ]
    if any(each.batch_sampler is None for each in shards):
        raise UsageError(
            "a loader without a batch size, as of a stream that makes batches, is not shared out by"
            " accelerate: leave it out of prepare()"
        )
    if any(
        not each.even_batches and not each.drop_last and each.num_processes > 1 for each in shards
    ):
        raise UsageError(
            "even_batches=False: the processes may have different "
            "numbers of batches, and a safe point is one of all "
            "of them. Remove it, or give the loader drop_last=True"
        )
    if (
        isinstance(loader, DataLoaderDispatcher)
        and loader.state.num_processes > 1
        and not loader._drop_last  # noqa: SLF001
    ):
        raise UsageError(
            "process 0 dispatches this loader's batches, "
            "and fills a short last one up from the first one that it has "
            "dispatched: after a resume that is another one. Give the loader drop_last=True"
        )
    return PreparedFeed(loader, seed, _unproven_accelerate())


@cache
def _unproven_accelerate() -> UnprovenCode | None:
    return require("accelerate", NAMES["accelerate"])


class _FetchState(NamedTuple):
    """The position and the random numbers just before a batch was fetched from the loader
    inside.
    """

    number: int  # of the batches fetched before it in this epoch
    position: FeedPosition
    random: dict[str, Any]


class PreparedFeed(Feed):
    """The feed of a prepared loader. Its epochs are those of the run,
    and `loader.iteration` follows them.
    """

    def __init__(self, loader: Any, seed: int, untried: UnprovenCode | None) -> None:
        super().__init__(loader)
        self._inner = feeds.feed_for(loader.base_dataloader, seed)
        self.replays, inside = self._inner.replays, self._inner.unknown
        self.unknown = untried or inside
        if untried is not None and inside is not None:  # one drill proves both
            self.unknown = untried._replace(code=untried.code[:16] + code_digest(inside)[:16])
        dispatches = isinstance(loader, DataLoaderDispatcher) and not loader.split_batches
        # batches of the loader inside for one outside
        self._each = loader.state.num_processes if dispatches else 1
        self._batches: Iterator[Any] = iter(())
        self._notes: deque[_FetchState] = deque()
        self._again: deque[Any] = deque()  # fetched again, and not yet taken by accelerate
        self._given = self._fetched = 0
        # the state of the samplers' generator before it drew this epoch's order
        self._began: Any = None
        self._end: FeedPosition | None = None  # where this epoch was resumed, if that was its end

    @property
    def can_save_here(self) -> bool:
        """Return whether the last batch ended a group of `accelerator.accumulate`."""
        return bool(self._loader.gradient_state.sync_gradients)

    def require_objects(self, objects: Iterable[object]) -> None:
        """Require the loader's Accelerator among the tracked objects.

        Raises:
            UsageError: the Accelerator is not in the state.
        """
        if not any(isinstance(each, AcceleratorMembers) for each in objects):
            raise UsageError(
                "run.batches() of a prepared loader wants the Accelerator in the state, "
                "which keeps the gradients of a "
                "group that has not ended: Run(..., "
                "dict(accelerator=accelerator)). Its models, optimizers and "
                "schedulers come with it"
            )

    def open(self, epoch: int, position: FeedPosition | None) -> Iterator[Any]:
        position, self._end = self._end if position is None else position, None
        self._epoch, self._given = epoch, batches_before(position, epoch)
        self._notes.clear()
        self._again.clear()
        if position is not None and self._given and position["ended"]:
            self._end = position
            return self._end_without_batches()
        self._loader.iteration = epoch
        if position is not None:
            self._set_generator(position["began"])
        if not self._given:
            self._synchronize()
        self._began = self._generator_state()
        self._loader.set_epoch(epoch)
        inner = None if position is None else position["inner"]
        self._batches, self._fetched = self._inner.open(epoch, inner), batches_before(inner, epoch)
        if self._given and position is not None:
            for random in position["fetched"]:
                rng.restore(random)
                self._again.append(self._fetch(random))
        elif position is not None:  # the sampler was only asked for the epoch before, to compare
            self._set_generator(position["now"])
            self._began = self._generator_state()
        return self._walk()

    def position(self, consumed: int) -> FeedPosition:
        if self._end is not None:
            return self._end
        ahead = [fetch for fetch in self._notes if fetch.number >= consumed * self._each]
        return {
            **super().position(consumed),
            "inner": ahead[0].position if ahead else dict(self._inner.position(self._fetched)),
            "fetched": [fetch.random for fetch in ahead],
            "ended": 0 < consumed == self._given and bool(self._loader.end_of_dataloader),
            "began": self._began,
            "now": self._generator_state(),
        }

    def describe(self) -> LoaderFacts:
        loader = self._loader
        sampler = loader.batch_sampler
        many = (
            getattr(sampler, "num_processes", self._each),
            getattr(sampler, "split_batches", False),
        )
        own = {"loader": type(loader).__name__, "accumulation": loader.gradient_state.num_steps}
        return {
            **self._inner.describe(),
            **own,
            "shards": [*many, getattr(sampler, "even_batches", True)],
        }

    def _walk(self) -> Iterator[Any]:
        batches: Any = iter(self._loader)
        try:
            with self._begin_iteration():
                batch = next(batches, _END)
            while batch is not _END:
                self._given += 1
                while self._notes and self._notes[0].number < (self._given - 1) * self._each:
                    self._notes.popleft()
                yield batch
                batch = next(batches, _END)
        # the loop was left: accelerate would go on counting this loader as the active one
        except GeneratorExit:
            batches.close()
            self._loader.end()
            raise

    @contextmanager
    def _begin_iteration(self) -> Iterator[None]:
        """Let accelerate begin its iteration within this block. It takes Holdfast's batches, and
        does not synchronise again.
        """
        loader, inside = self._loader, vars(self._loader.base_dataloader)
        kinds = getattr(loader, "rng_types", None)
        inside["__iter__"] = self._fetch_all
        loader.rng_types = None
        try:
            yield
        finally:
            del inside["__iter__"]
            loader.rng_types = kinds

    def _fetch_all(self) -> Iterator[Any]:
        """Yield the batches of the loader inside as accelerate takes them."""
        while (batch := self._again.popleft() if self._again else self._fetch()) is not _END:
            yield batch

    def _fetch(self, random: dict[str, Any] | None = None) -> Any:
        before = rng.capture() if random is None else random
        self._notes.append(
            _FetchState(self._fetched, dict(self._inner.position(self._fetched)), before)
        )
        batch = next(self._batches, _END)
        self._fetched += batch is not _END
        return batch

    def _end_without_batches(self) -> Iterator[Any]:
        """End an epoch of which no batch remains; accelerate's own iteration would begin it once
        more.

        Its counts change only when the loop asks for a batch: until then the state must be the
        restored one.
        """
        yield from ()
        self._loader.iteration, self._loader.end_of_dataloader = self._epoch + 1, True

    def _synchronize(self) -> None:
        """Give all processes the random numbers of process 0, as accelerate does when it begins."""
        kinds = getattr(self._loader, "rng_types", None)
        if kinds is not None:
            synchronize_rng_states(kinds, self._loader.synchronized_generator)

    def _generator_state(self) -> Any:
        """Return the state of the generator that the samplers of all processes share,
        if there is one.
        """
        generator = getattr(self._loader, "synchronized_generator", None)
        return None if generator is None else generator.get_state()

    def _set_generator(self, state: Any) -> None:
        generator = getattr(self._loader, "synchronized_generator", None)
        if generator is not None and state is not None:
            generator.set_state(state)
