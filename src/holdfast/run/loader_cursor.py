"""LoaderCursor: one loader in one epoch: its remaining batches, and where a resume continues."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from ..data.advice import DATA, Advice
from ..data.facts import Feed, FeedPosition, OtherFeedKind, StoredPosition, known_length
from ..data.feed import feed_for
from ..data.replay import close_batches
from ..errors import Mismatch, UsageError
from ..ranks import Ranks
from ..state import rng
from ..stateful import fingerprint
from ..stateful.tracked import Tracked, digest_state
from ..store.store import Store
from ..terminal import warn
from .capture import StateCapture
from .deferred_saves import EpochEndSaves
from .drilled import DrillHooks
from .lifecycle import LoopLifecycle
from .position import AHEAD, LoaderPosition, NamedLoader, StateBeforeFetch

_END = object()


class BatchesArguments(NamedTuple):
    """The arguments of run.batches() or run.enumerate()."""

    loader: Iterable[Any] | Feed
    name: str
    accumulate: int = 1
    # run.enumerate() only: number of the epoch's first batch; each batch comes with its index
    start: int | None = None
    counts: bool = False  # run.steps(): there is no loader, and no batch is the last


class Loaders(msgspec.Struct, frozen=True):
    """The loaders of one attempt: opens each where the run's position is, or says why it cannot."""

    loops: LoopLifecycle
    _accept: Collection[str]
    _ranks: Ranks
    _store: Store
    _capture: StateCapture
    tracked: Tracked
    waiting: EpochEndSaves
    drill: DrillHooks

    def find_resume_position(
        self, served: BatchesArguments, consumed: int
    ) -> tuple[Feed, FeedPosition | None, Mismatch | None, bool]:
        """Return the feed of the loader, the position at which to open it, why not, and whether it
        is the first after a restore.

        A replaced loader continues if its facts are equal. Otherwise it starts over; in mid-epoch
        it is refused.
        """
        loader, name, progress = served.loader, served.name, self.loops.progress
        known, refusal = progress.sources.get(name), None
        same = known is not None and known.loader is loader
        feed = (
            known.feed if known is not None and same else feed_for(loader, progress.seed or 0, name)
        )
        before, now = (
            progress.loader_facts.get(name),
            {**feed.describe(), "accumulate": served.accumulate},
        )
        first = before is not None and known is None
        if before is not None and first:
            moved = (
                fingerprint.facts_that_move_position(before, now, self._accept) if consumed else []
            )
            refusal = fingerprint.changed_loader_error(name, before, now, moved) if moved else None
            if refusal is None or DATA in self._accept:
                for line in fingerprint.describe_changes(before, now, f"loader {name}: "):
                    self.loops.reporter.warn_changed(line)
        # the feed object already knows its position
        afresh = same or (known is not None and feed.replays)
        goes_on = not afresh and (
            consumed or before is None or fingerprint.have_same_batches(before, now)
        )
        progress.register_loader(name, NamedLoader(loader, feed), now)
        position = self.loops.position.feeds.get(name) if goes_on else None
        if consumed and feed.replays and refusal is None:
            warn(
                f"loader {name!r} cannot be positioned: "
                f"{consumed} batches of it are read again and dropped"
            )
        return feed, None if position is None else StoredPosition.of(position), refusal, first

    def open_at_position(
        self, feed: Feed, name: str, position: FeedPosition | None, refusal: Mismatch | None
    ) -> Any:
        """Return the batches of the first loop over a loader after a restore, and whether they are
        those of `position`.

        Raises:
            Mismatch: `position` cannot be restored, or `refusal` says so before it was tried, and
                nobody accepts that.
        """
        before = rng.capture()
        epoch, done = self.loops.position.epoch, self.loops.position.consumed(name)
        accepted = DATA in self._accept
        batches: Iterator[Any] = iter(())
        try:
            if refusal is not None:
                raise refusal
            batches, why = feed.open(epoch, position), ""
        except OtherFeedKind as error:
            if done and not accepted:
                raise self._add_go_back_hint(error) from error
            if not done:  # between epochs a loader may be replaced: its position is at the start
                self.loops.reporter.warn_changed(
                    f"loader {name}: another kind of loader begins this epoch"
                )
                return feed.open(epoch, None), True
            why = str(error)
        except Mismatch as error:
            if not accepted:
                raise self._add_go_back_hint(error) from error
            why = str(error)
        if accepted:
            found = self._ranks.run_on_all("a position in the data", why.encode, max).decode()
            if found:
                close_batches(batches)
                rng.restore(before)
                batches = feed.open_and_skip(epoch, done)
                self._report_inexact(name, done, found)
                return batches, False
        return batches, True

    def _add_go_back_hint(self, error: Mismatch) -> Mismatch:
        """Return the refusal with the step to go back to, if the run has a checkpoint at an epoch's
        end before this one.
        """
        ends = [
            name
            for name in self._store.index.names()
            if name.phase == "end" and name.order < self.loops.position.checkpoint_name.order
        ]
        if not ends:
            return error
        back = f"To go back to the end of an epoch instead, say Run(..., go_back={ends[-1].step})"
        advice = Advice("an epoch's end", back)
        return Mismatch(f"{error}. {advice}")

    def _report_inexact(self, name: str, skipped: int, why: str) -> None:
        step, reporter = self.loops.position.step, self.loops.reporter
        self._capture.mark_inexact_from(step)
        self.loops.reporter.attempt.record(
            "inexact", step=step, loader=name, skipped=skipped, why=why
        )
        cause = why.partition(". ")[0]
        reporter.warn(
            f"{self.loops.end.path}: not exact from step {step}: {cause}; "
            f"{skipped} batches of a new pass of the loader {name!r} "
            "are skipped, and the rest is trained",
            kind="inexact",
            name=name,
        )


class LoaderCursor(Iterator[Any]):
    """The remaining batches of a loader in this epoch.

    `at` is how far it has come. What a resume has fetched again is taken before it is out.

    A caller may fetch batches ahead, as trainers do. Such a fetch may draw random numbers before
    the safe point to whose next step it belongs. They are noted: a resume fetches these batches
    again with the same random numbers.
    """

    def __init__(self, loaders: Loaders, served: BatchesArguments, *, ahead: bool = False) -> None:
        loops = loaders.loops
        self._loops, self._drill, position_now = loops, loaders.drill, loops.position
        self._settled = self._closed = False
        # whether a safe point may come before all that was taken is consumed
        self._may_be_ahead = ahead
        self.given = consumed = position_now.consumed(served.name)  # batches that are out
        length = -1 if ahead or served.counts else known_length(served.loader)
        self._again: deque[Any] = deque()  # batches that had been fetched ahead of the checkpoint
        feed, position, refusal, first = loaders.find_resume_position(served, consumed)
        if not ahead:  # a trainer knows by itself where its steps end
            feed.require_objects(loaders.tracked.objects.values())
        loaders.waiting.note_loader(served.name, feed.unknown)
        self.at = LoaderPosition(served.name, feed, consumed, length, served.accumulate)
        loops.progress.set_loader_in_progress(self.at)
        again: list[dict[str, Any]] = []
        if position is not None and AHEAD in position:
            again = position[AHEAD] if position["epoch"] == position_now.epoch else []
            position = {key: value for key, value in position.items() if key != AHEAD}
        epoch, exact = position_now.epoch, True
        if first:
            self._remaining, exact = loaders.open_at_position(feed, served.name, position, refusal)
        else:
            self._remaining = feed.open(epoch, position)
        for random in again if exact else ():
            rng.restore(random)
            self._again.append(self._fetch_batch(random))  # the last may be the end

    def _restore_state_before_fetch(self) -> None:
        """Restore the state and the random numbers as they were before the first of these
        batches.
        """
        self._settled, loops = True, self._loops
        loops.start.undo_changes(ready=loops.position.current in (None, self.at.name))
        loops.position.set_current_loader(self.at.name)
        loops.metrics.begin_step()

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        if not self._settled:
            self._restore_state_before_fetch()
        batch = (
            self._again.popleft() if self._again else _END if self.at.ended else self._fetch_batch()
        )
        if batch is _END:
            raise StopIteration
        witness = self._drill.witness
        if witness is not None:
            witness.note_batch(batch)
        self.given += 1
        return batch

    def _fetch_batch(self, random: dict[str, Any] | None = None) -> Any:
        at = self.at
        ahead = random is not None or (self._may_be_ahead and at.taken > at.consumed)
        position, before = (at.position_after(at.taken), rng.capture()) if ahead else ({}, {})
        batch = next(self._remaining, _END)
        if ahead:
            if random is None:  # a loader that is read again notes the states of all of them itself
                random = before if at.feed.replays else _generators_drawn_since(before)
            at.ahead.append(StateBeforeFetch(position, random))
        at.note_fetched(end=batch is _END)
        return batch

    def step_done(self, batches: int, *, final: bool = False) -> None:
        """Mark a step that consumed `batches` more: a safe point."""
        self.consume(batches)
        self._loops.points.step_done(final=final)
        if self.at.ended and self.at.consumed == self.at.taken:
            self._loops.points.note_loader_exhausted()

    def consume(self, batches: int) -> None:
        """Note that `batches` more of those given out are done.

        Raises:
            UsageError: so many are not out.
        """
        at = self.at
        if batches > self.given - at.consumed:
            raise UsageError(
                f"{batches} batches of the loader {at.name!r} are done, "
                f"and only {self.given - at.consumed} are "
                "out that were not counted yet: give the number that this step consumed"
            )
        at.note_consumed(batches)
        self._loops.progress.note_consumed(at)

    def end_for_epoch(self) -> None:
        """End the loader for this epoch: what remains of it is skipped, also after a resume."""
        self._loops.progress.end_loader(self.at)
        self._loops.points.note_loader_exhausted()

    def close(self) -> None:
        """Give no more batches, and release the loader's resources, such as its workers."""
        self._closed, remaining = True, self._remaining
        self._remaining = iter(())
        self._again.clear()
        close_batches(remaining)


def _generators_drawn_since(before: dict[str, Any]) -> dict[str, Any]:
    """Return the states of those generators that have been drawn from since `before`."""
    changed = digest_state(before).changed_keys(digest_state(rng.capture()))
    return {
        name: before[name]
        for name in {key.removeprefix("tree:").partition("/")[0] for key in changed}
    }
