"""Loops: the generators that a training loop walks. They resume where the run was, and after each body comes a safe point."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from ..data.feed import Feed, feed_for
from ..errors import UsageError
from ..state import rng
from ..terminal import say, warn
from . import fingerprint
from .opening import require_settled, settle
from .saving import safe_point, step_done
from .session import Session

_MAY_BEGIN = {(): ("epochs", "steps", "batches"), ("epochs",): ("batches",)}


def epochs(session: Session, total: int) -> Generator[int, None, None]:
    """Yields the epochs still to do; a safe point follows each one's body."""
    with _inside(session, "epochs"):
        position = session.position
        _begin_outer(session, total)
        settle(session, ready=not position.in_epoch or position.current is None)
        while position.epoch < total and not position.left:
            if not position.in_epoch:
                _begin_epoch(session)
            session.walked.clear()
            session.progress.update(epoch=position.epoch, epochs=total)
            yield position.epoch
            require_settled(session)
            ended = position.epoch
            position.end_epoch()
            safe_point(session, "end", epoch=ended, final=position.epoch >= total)
        session.outer_done = True


def steps(session: Session, total: int, name: str) -> Generator[int, None, None]:
    """Yields the steps still to do; inside `epochs`, those of this epoch."""
    if session.loops == ["epochs"]:
        yield from batches(session, range(total), name, 1)
        return
    with _inside(session, "steps"):
        position = session.position
        _begin_outer(session, total)
        settle(session)
        while position.step < total and not position.left:
            session.progress.update(total=total)
            yield position.step
            step_done(session, final=position.step + 1 >= total)
        session.outer_done = True


def batches(session: Session, loader: Iterable[Any], name: str, accumulate: int) -> Generator[Any, None, None]:
    """Yields the batches of this epoch still to do; a safe point follows each body, or each group of them."""
    if accumulate < 1:
        raise UsageError(f"accumulate={accumulate}: at least 1")
    with _inside(session, "batches"):
        position = session.position
        _begin_walk(session, name)
        if not position.in_epoch:
            _begin_epoch(session)
        if position.loaders.get(name, {}).get("done"):
            settle(session, ready=position.current is None and session.loops == ["batches"])
            return
        yield from _consume(session, _feed(session, loader, name, accumulate), name, accumulate)
        if session.loops == ["batches"]:
            safe_point(session, "end", final=True)


def _consume(session: Session, feed: Feed, name: str, accumulate: int) -> Generator[Any, None, None]:
    position = session.position
    consumed = position.loaders.get(name, {}).get("consumed", 0)
    with closing(_open(session, feed, name, consumed)) as rest:
        settle(session, ready=position.current in (None, name))
        position.current = name
        try:
            for batch in rest:
                yield batch
                consumed += 1
                if consumed % accumulate == 0:
                    _consumed(session, feed, name, consumed)
            if consumed % accumulate:
                _consumed(session, feed, name, consumed)
        finally:  # also after `break`: the rest of the epoch's batches is left out, now and after a resume
            position.current = None
            position.loaders[name] = {"consumed": consumed, "done": True}


def _consumed(session: Session, feed: Feed, name: str, consumed: int) -> None:
    session.reached[name] = (feed, consumed)
    session.position.loaders[name] = {"consumed": consumed, "done": False}
    step_done(session)


def _open(session: Session, feed: Feed, name: str, consumed: int) -> Generator[Any, None, None]:
    """The batches still to do. A feed that must be replayed sees the random numbers of its epoch's start."""
    first = name not in session.reached
    if consumed and feed.replays:
        warn(f"loader {name!r} cannot be positioned: {consumed} batches of it are read again and dropped")
        rng.restore(session.epoch_rng)
    session.reached[name] = (feed, consumed)
    return _closable(feed.open(session.position.epoch, session.position.feeds.get(name) if first else None))


def _closable(rest: Iterator[Any]) -> Generator[Any, None, None]:
    """`rest` as a generator: `close` reaches it, whatever kind of iterator it is."""
    try:
        yield from rest
    finally:
        close = getattr(rest, "close", None)
        if close is not None:
            close()


def _feed(session: Session, loader: Iterable[Any], name: str, accumulate: int) -> Feed:
    """The loader's feed, made once; told when the loader is not as it was, refused when its position would lie."""
    if name not in session.feeds:
        session.feeds[name] = feed_for(loader, session.seed or 0, name)
    now = {**session.feeds[name].describe(), "accumulate": accumulate}
    if name in session.loaders:
        for line in fingerprint.loader_changes(name, session.loaders[name], now, session.options.accept):
            session.tell(line)
    session.loaders[name] = now
    return session.feeds[name]


def _begin_epoch(session: Session) -> None:
    session.position.begin_epoch()
    session.epoch_rng = rng.capture()


def _begin_walk(session: Session, name: str) -> None:
    if name in session.walked:
        raise UsageError(
            f"run.batches(..., name={name!r}) a second time in one epoch: give each loop its own name, and go through "
            "epochs with run.epochs()"
        )
    session.walked.add(name)


def _begin_outer(session: Session, total: int) -> None:
    position = session.position
    if position.target is not None and position.target != total:
        session.attempt.record("extended", was=position.target, now=total)
        say(f"{session.path}: was to end at {position.target}, now at {total}")
        position.left = position.left and total <= position.target
    position.target = total
    session.outer_begun, session.outer_done = True, False


@contextmanager
def _inside(session: Session, kind: str) -> Iterator[None]:
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
