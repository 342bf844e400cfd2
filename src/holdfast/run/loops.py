"""Loops: the generators behind the training loops. They resume the run's position; a safe point follows each body."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any, NamedTuple

from ..data.facts import Feed
from ..data.feed import feed_for
from ..errors import UsageError
from ..terminal import say, warn
from . import fingerprint
from .arguments import ENDLESS
from .leaving import count_left_pass, end_outer
from .opening import begin_again, require_settled, settle
from .passes import Walk
from .position import Source
from .ranks import require_one_loop
from .safe_point import safe_point, step_done
from .session import Session

_MAY_BEGIN = {(): ("epochs", "steps", "batches"), ("epochs",): ("batches", "steps")}


class BatchesArguments(NamedTuple):
    """The arguments of run.batches() or run.enumerate()."""

    loader: Iterable[Any]
    name: str
    accumulate: int = 1
    start: int | None = None  # run.enumerate() only: number of the epoch's first batch; each batch comes with its index


def epochs(session: Session, walk: Walk, wanted: range) -> Generator[int, None, None]:
    """Yield the remaining epochs; a safe point follows the body of each."""
    first, total = wanted.start, wanted.stop
    with _inside(session, walk), _outer(session, walk, total, first):
        position, walks = session.position, session.progress.walks
        settle(session, ready=not position.in_epoch or position.current is None)
        while position.epoch < total and total > position.left.get("epochs", -1):
            if position.in_epoch:
                begin_again(session)
            else:
                session.progress.begin_epoch()
                session.metrics.means.clear()
            walks.named.clear()
            session.display.update(epoch=position.epoch - first, epochs=total - first)
            yield position.epoch
            session.require_alive()
            walks.close_inside(walk)  # a loop of this epoch was left, and the script still holds its iterator
            count_left_pass(session)
            require_settled(session)
            ended = position.epoch
            position.end_epoch()
            safe_point(session, "end", epoch=ended, final=position.epoch >= total)


def steps(session: Session, walk: Walk, total: int, name: str) -> Generator[int, None, None]:
    """Yield the remaining steps; inside `epochs`, those of this epoch."""
    if session.progress.walks.kinds == ("epochs",):
        yield from batches(session, walk, BatchesArguments(range(total), name))
        return
    with _inside(session, walk), _outer(session, walk, total):
        position = session.position
        settle(session)
        session.display.update(total=total if total < ENDLESS else None)
        session.metrics.begin_step()
        while position.step < total and total > position.left.get("steps", -1):
            try:
                yield position.step
            except GeneratorExit:
                _leave_pass(session)
                raise
            step_done(session, final=position.step + 1 >= total)


def batches(session: Session, walk: Walk, served: BatchesArguments) -> Generator[Any, None, None]:
    """Yield the remaining batches of this epoch; a safe point follows each body, or each group of bodies."""
    name, named, position = served.name, session.progress.walks.named, session.position
    in_epochs = session.progress.walks.kinds == ("epochs",)
    with _inside(session, walk):
        if name in named:
            raise UsageError(
                f"the loop {name!r} a second time in one epoch: give each loop its own name, and go through epochs "
                "with `for epoch in run.epochs(3):` around it. Without that, all of the run is one epoch"
            )
        named.add(name)
        if in_epochs:
            yield from _walk(session, served)
            return
        with _outer(session, walk, 1):  # the whole run is one pass
            if not position.in_epoch and not position.left:
                position.begin_epoch()
            settle(session, ready=position.current is None)
            if not position.left and not position.loaders.get(name, {}).get("done"):
                yield from _walk(session, served)
                safe_point(session, "end", final=True)


def _walk(session: Session, served: BatchesArguments) -> Generator[Any, None, None]:
    name, progress, position = served.name, session.progress, session.position
    at = position.loaders.get(name, {"consumed": 0, "done": False})
    if at["done"]:
        return
    begun = taken = counted = at["consumed"]  # index of the group's first batch, whatever `accumulate` was
    feed, remaining = _open(session, served, begun)
    with closing(remaining) if hasattr(remaining, "close") else nullcontext():
        settle(session, ready=position.current in (None, name))
        position.serve(name)
        try:
            session.metrics.begin_step()
            for batch in remaining:
                taken += 1
                if session.witness is not None:
                    session.witness.consumed(batch)
                yield batch if served.start is None else (served.start + taken - 1, batch)
                if (taken - begun) % served.accumulate == 0:
                    counted = taken
                    progress.reach(name, feed, taken, counts=True)
                    step_done(session)
            if taken > counted:
                progress.reach(name, feed, taken, counts=True)
                step_done(session)
            progress.leave_source(name, feed, taken)
        except GeneratorExit:  # `break`: skip the rest of the epoch's batches, also after a resume
            if _leave_pass(session):
                progress.leave_source(name, feed, taken)
            raise


def _leave_pass(session: Session) -> bool:
    """Remember that the current pass was left, so that it is counted when the script continues.

    Return False if the run has ended.
    """
    if session.is_over:
        return False
    session.progress.walks.leave_pass(session.metrics.set_aside())
    return True


def _open(session: Session, served: BatchesArguments, consumed: int) -> tuple[Feed, Any]:
    """Return the feed of the loader and an iterator over the remaining batches.

    A replaced loader continues if its facts are equal. Otherwise it starts over; in mid-epoch it is refused.
    """
    loader, name, progress = served.loader, served.name, session.progress
    known = progress.sources.get(name)
    same = known is not None and known.loader is loader
    feed = known.feed if known is not None and same else feed_for(loader, progress.seed or 0, name)
    before, now = progress.loader_facts.get(name), {**feed.describe(), "accumulate": served.accumulate}
    if before is not None and known is None:  # compare only the first loader after a restore
        if consumed:
            fingerprint.require_accepted(name, before, now, session.options.accept)
        for line in fingerprint.changes(before, now, f"loader {name}: "):
            session.tell_changed(line)
    afresh = same or (known is not None and feed.replays)  # the feed object already knows its position
    goes_on = not afresh and (consumed or before is None or fingerprint.alike(before, now))
    progress.keep_source(name, Source(loader, feed), now)
    if consumed and feed.replays:
        warn(
            f"loader {name!r} cannot be positioned: {consumed} batches of it are read again and dropped. A list, a "
            "DataLoader, holdfast.data.Zip(a, b), or state_dict() and load_state_dict() would avoid that"
        )
    progress.reach(name, feed, consumed)
    return feed, feed.open(session.position.epoch, session.position.feeds.get(name) if goes_on else None)


@contextmanager
def _outer(session: Session, walk: Walk, total: int, first: int = 0) -> Iterator[None]:
    """Run an outermost loop: note whether it ends, is left, or raises."""
    _begin_outer(session, walk.kind, total, first)
    standing, walks = session.standing, session.progress.walks
    if standing is not None:
        standing.loop_begins()
    try:
        yield
    except GeneratorExit:  # `break`, or an exception leaving the block; after an exception nothing is saved
        if not session.is_over:
            walks.leave_outer(session.metrics.set_aside())
            if standing is not None:
                standing.loop_left(_LOOP_CODES)
        raise
    except BaseException as error:  # the loader or a save raised: the position stays at the last safe point
        walks.take_outer()
        if standing is not None:
            standing.leave(error)
        raise
    walks.take_outer()
    if standing is not None:
        standing.loop_ended()


def _begin_outer(session: Session, kind: str, total: int, first: int) -> None:
    end_outer(session)
    require_one_loop(session.ranks, kind, total)
    progress = session.progress
    targets = session.position.targets
    if targets and ("batches" in targets) != (kind == "batches"):
        raise UsageError(
            "this run has walked run.batches() outside of run.epochs(), and then that loop is all of the run. Put "
            "every run.batches() inside `for epoch in run.epochs(...):`"
        )
    _require_more(session, kind, total)
    if kind == "epochs":
        session.position.begin_epochs(first)
    was = targets.get(kind, total)
    if total > was and progress.steps_here == 0:  # only after a restore: a second loop of the script is not reported
        session.attempt.record("extended", loop=kind, was=was, now=total)
        say(f"{session.path}: {kind} were to end at {was}, now {f'at {total}' if total < ENDLESS else 'without end'}")
    targets[kind] = max(total, was)
    progress.walks.begin_outer(kind, total)
    progress.restart_clock()


def _require_more(session: Session, kind: str, total: int) -> None:
    """
    Raises:
        UsageError: this process already finished such a loop; this one would have no passes.
    """
    totals, position = session.progress.walks.totals, session.position
    if kind == "batches":
        if "batches" in position.left and kind in totals:
            raise UsageError(
                "the run ended when the first run.batches() was left, so that this one would be empty: put both of "
                "them inside `for epoch in run.epochs(1):`"
            )
    elif total <= totals.get(kind, -1):
        rounds = "`for epoch in run.epochs(3):` around it" if kind == "steps" else "a Run of its own for each training"
        raise UsageError(
            f"run.{kind}() a second time, up to no more than the first time: it counts over all of the run, so that "
            f"this loop would be empty. Write {rounds}, or give a larger total"
        )
    totals[kind] = total


@contextmanager
def _inside(session: Session, walk: Walk) -> Iterator[None]:
    session.require_alive()
    count_left_pass(session)
    walks = session.progress.walks
    kinds = walks.kinds
    if walk.kind not in _MAY_BEGIN.get(kinds, ()):
        raise UsageError(
            f"run.{walk.kind}() inside run.{kinds[-1]}(): a safe point of the inner loop would lie in the middle of "
            "the outer one's body. Put run.epochs() around run.batches(), or walk two loaders side by side: "
            "run.batches(holdfast.data.Zip(a, b)). A loop that `break` has left must not be held by a variable"
        )
    walks.open.append(walk)
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        walks.failed(error)
        if session.over is not None and session.standing is not None:  # a stop ends the outermost loop as well
            session.standing.leave(error)
        raise
    finally:
        walks.open.remove(walk)


_LOOP_CODES = frozenset({epochs.__code__, steps.__code__, batches.__code__})  # code objects of our loop generators
