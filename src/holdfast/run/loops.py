"""Loops: the generators that a training loop walks. They resume where the run was, and after each body comes a safe point."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from ..data.feed import feed_for
from ..errors import UsageError
from ..state import rng
from ..terminal import say, warn
from . import fingerprint
from .opening import require_settled, settle
from .ranks import require_one_loop
from .saving import safe_point, step_done
from .session import Session, Source

_MAY_BEGIN = {(): ("epochs", "steps", "batches"), ("epochs",): ("batches",)}


def epochs(session: Session, total: int) -> Generator[int, None, None]:
    """Yields the epochs still to do; a safe point follows each one's body."""
    with _inside(session, "epochs"), _outer(session, "epochs", total):
        position = session.position
        settle(session, ready=not position.in_epoch or position.current is None)
        while position.epoch < total and total > position.left.get("epochs", -1):
            if not position.in_epoch:
                position.begin_epoch()
            session.walked.clear()
            session.progress.update(epoch=position.epoch, epochs=total)
            yield position.epoch
            session.require_alive()
            require_settled(session)
            ended = position.epoch
            position.end_epoch()
            safe_point(session, "end", epoch=ended, final=position.epoch >= total)


def steps(session: Session, total: int, name: str) -> Generator[int, None, None]:
    """Yields the steps still to do; inside `epochs`, those of this epoch."""
    if session.loops == ["epochs"]:
        yield from batches(session, range(total), name, 1)
        return
    with _inside(session, "steps"), _outer(session, "steps", total):
        position = session.position
        settle(session)
        session.progress.update(total=total)
        session.early = set(session.logged)
        while position.step < total and total > position.left.get("steps", -1):
            yield position.step
            step_done(session, final=position.step + 1 >= total)


def batches(session: Session, loader: Iterable[Any], name: str, accumulate: int) -> Generator[Any, None, None]:
    """Yields the batches of this epoch still to do; a safe point follows each body, or each group of them."""
    if accumulate < 1:
        raise UsageError(f"accumulate={accumulate}: at least 1")
    if session.loops == ["epochs"]:
        with _inside(session, "batches"):
            yield from _walk(session, loader, name, accumulate)
        return
    with _inside(session, "batches"), _outer(session, "batches", 1):  # all of the run is one pass
        position = session.position
        if not position.in_epoch and not position.left:
            position.begin_epoch()
        settle(session, ready=position.current is None)
        if not position.left and not position.loaders.get(name, {}).get("done"):
            yield from _walk(session, loader, name, accumulate)
            safe_point(session, "end", final=True)


def _walk(session: Session, loader: Iterable[Any], name: str, accumulate: int) -> Generator[Any, None, None]:
    if name in session.walked:
        raise UsageError(
            f"run.batches(..., name={name!r}) a second time in one epoch: give each loop its own name, and go through "
            "epochs with run.epochs()"
        )
    session.walked.add(name)
    at = session.position.loaders.get(name, {"consumed": 0, "done": False})
    if not at["done"]:
        source = _source(session, loader, name, accumulate, at["consumed"])
        yield from _consume(session, source, name, accumulate, at["consumed"])


def _consume(session: Session, source: Source, name: str, accumulate: int, consumed: int) -> Generator[Any, None, None]:
    position = session.position
    begun = taken = counted = consumed  # where a group begins, however large groups were before
    with closing(_open(session, source, name, consumed)) as rest:
        settle(session, ready=position.current in (None, name))
        position.current = name
        try:
            session.early = set(session.logged)
            for batch in rest:
                taken += 1
                if session.witness is not None:
                    session.witness.consumed(batch)
                yield batch
                consumed += 1
                if (consumed - begun) % accumulate == 0:
                    counted = consumed
                    _consumed(session, source, name, consumed)
            if consumed > counted:
                _consumed(session, source, name, consumed)
            _leave(session, source, name, taken)
        except GeneratorExit:  # `break`: the rest of the epoch's batches is left out, now and after a resume
            _leave(session, source, name, taken)
            raise


def _consumed(session: Session, source: Source, name: str, consumed: int) -> None:
    session.reached = {name: (source.feed, consumed)}
    session.position.loaders[name] = {"consumed": consumed, "done": False}
    step_done(session)


def _leave(session: Session, source: Source, name: str, taken: int) -> None:
    session.reached = {}
    session.position.current = None
    session.position.feeds[name] = dict(source.feed.position(taken))
    session.position.loaders[name] = {"consumed": taken, "done": True}


def _open(session: Session, source: Source, name: str, consumed: int) -> Generator[Any, None, None]:
    """The batches still to do. A feed that is replayed sees the random numbers with which this pass of it began."""
    feed, begins = source.feed, source.begins
    source.begins = None  # from here on the feed itself knows
    if not consumed:
        session.replay_rng = rng.capture() if feed.replays else None
    elif feed.replays:
        warn(
            f"loader {name!r} cannot be positioned: {consumed} batches of it are read again and dropped. A list, a "
            "DataLoader, or state_dict() and load_state_dict() would avoid that"
        )
        rng.restore(session.replay_rng or {})
    session.reached = {name: (feed, consumed)}
    return _closable(feed.open(session.position.epoch, begins))


def _closable(rest: Iterator[Any]) -> Generator[Any, None, None]:
    """`rest` as a generator: `close` reaches it, whatever kind of iterator it is."""
    try:
        yield from rest
    finally:
        close = getattr(rest, "close", None)
        if close is not None:
            close()


def _source(session: Session, loader: Iterable[Any], name: str, accumulate: int, consumed: int) -> Source:
    """The loader with its feed, made once for each object that comes under `name`.

    One that is like its predecessor goes on where that one was; another kind of loader begins anew, which in the
    middle of an epoch is refused.
    """
    known = session.sources.get(name)
    same = known is not None and known.loader is loader
    source = known if known is not None and same else Source(loader, feed_for(loader, session.seed or 0, name))
    before, now = session.loaders.get(name), {**source.feed.describe(), "accumulate": accumulate}
    if before is not None and known is None:  # the first since the restore; afterwards a change is the script's own
        if consumed:
            fingerprint.require_accepted(name, before, now, session.options.accept)
        for line in fingerprint.changes(before, now, f"loader {name}: "):
            session.tell(line)
    if not same and (consumed or before is None or fingerprint.alike(before, now)):
        source.begins = session.position.feeds.get(name)
    session.loaders[name], session.sources[name] = now, source
    return source


@contextmanager
def _outer(session: Session, kind: str, total: int) -> Iterator[None]:
    """An outermost loop: what ends it early is noted, and told from its own end."""
    session.leave_outer()
    require_one_loop(session.ranks, kind, total)
    targets = session.position.targets
    if targets and ("batches" in targets) != (kind == "batches"):
        raise UsageError("run.batches() without run.epochs() around it is a whole run: put it inside run.epochs(1)")
    was = targets.get(kind, total)
    if total > was and session.steps_here == 0:  # as restored; a second loop of the script's own is no news
        session.attempt.record("extended", loop=kind, was=was, now=total)
        say(f"{session.path}: {kind} were to end at {was}, now at {total}")
    targets[kind] = max(total, was)
    session.outer = kind, total
    session.last_point_s = time.monotonic()
    try:
        yield
        session.outer = None
    except GeneratorExit:  # `break`; or an exception that leaves the block too, and then nothing is saved
        session.logged_inside, session.logged = session.logged, {}
        raise
    except BaseException:  # of the loader, or of a save: the position is as true as it was
        session.outer = None
        raise


@contextmanager
def _inside(session: Session, kind: str) -> Iterator[None]:
    session.require_alive()
    loops = session.loops
    if kind not in _MAY_BEGIN.get(tuple(loops), ()):
        raise UsageError(
            f"run.{kind}() inside run.{loops[-1]}(): a safe point of the inner loop would lie in the middle of the "
            "outer one's body. Two loaders side by side: run.batches(zip(a, b))"
        )
    loops.append(kind)
    try:
        yield
    finally:
        loops.remove(kind)
        session.overlap.settle()  # code after a loop (an evaluation on averaged weights) is not what was tried
