"""Loops: the generators behind the training loops. They resume the run's position; a safe point follows each body."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

from ..errors import UsageError
from . import bare_loops
from .arguments import ENDLESS
from .leaving import count_left_pass, finish, leave
from .loader_cursor import BatchesArguments, LoaderCursor
from .loop import LOOP_CODES, begin_epoch, end_epoch, inside, leave_pass, outermost
from .opening import settle
from .passes import Walk
from .safe_point import safe_point, step_done
from .session import Session

EXITS = "exits"  # the event of a process that ends because the run was over


def epochs(session: Session, walk: Walk, wanted: range) -> Generator[int, None, None]:
    """Yield the remaining epochs; a safe point follows the body of each."""
    first, total = wanted.start, wanted.stop
    with inside(session, walk), outermost(session, "epochs", total, first):
        position, walks = session.position, session.progress.walks
        settle(session, ready=not position.in_epoch or position.current is None)
        while position.epoch < total and total > position.left.get("epochs", -1):
            begin_epoch(session, first, total)
            yield position.epoch
            session.require_alive()
            walks.close_inside(walk)  # a loop of this epoch was left, and the script still holds its iterator
            count_left_pass(session)
            bare_loops.tell(session)
            end_epoch(session, total)
        exits = _ends_without_pass(session)
    _exit_if(session, exits=exits)


def steps(session: Session, walk: Walk, total: int, name: str) -> Generator[int, None, None]:
    """Yield the remaining steps; inside `epochs`, those of this epoch."""
    if session.progress.walks.kinds == ("epochs",):
        yield from batches(session, walk, BatchesArguments(range(total), name, counts=True))
        return
    with inside(session, walk), outermost(session, "steps", total):
        position = session.position
        settle(session)
        session.display.update(total=total if total < ENDLESS else None)
        session.metrics.begin_step()
        while position.step < total and total > position.left.get("steps", -1):
            try:
                yield position.step
            except GeneratorExit:
                leave_pass(session)
                raise
            step_done(session, final=position.step + 1 >= total)
        exits = _ends_without_pass(session)
    _exit_if(session, exits=exits)


def batches(session: Session, walk: Walk, served: BatchesArguments) -> Generator[Any, None, None]:
    """Yield the remaining batches of this epoch; a safe point follows each body, or each group of bodies."""
    name, named, position = served.name, session.progress.walks.named, session.position
    in_epochs = session.progress.walks.kinds == ("epochs",)
    with inside(session, walk):
        if name in named:
            raise UsageError(
                f"the loop {name!r} a second time in one epoch: give each loop its own name, and go through epochs "
                "with `for epoch in run.epochs(3):` around it. Without that, all of the run is one epoch"
            )
        named.add(name)
        if in_epochs:
            yield from _walk(session, served)
            return
        with outermost(session, "batches", 1):  # the whole run is one pass
            if not position.in_epoch and not position.left:
                position.begin_epoch()
            settle(session, ready=position.current is None)
            if not position.left and not position.is_done(name):
                yield from _walk(session, served)
                safe_point(session, "end", final=True)
            exits = _ends_without_pass(session)
    _exit_if(session, exits=exits)


def _walk(session: Session, served: BatchesArguments) -> Generator[Any, None, None]:
    if session.position.is_done(served.name):
        session.progress.last_batch.skip_body(session, served.name)
        return
    with closing(LoaderCursor(session, served)) as cursor:
        at = cursor.at
        resumed_at = at.consumed
        try:
            for batch in cursor:
                session.progress.last_batch.begin_body()
                yield batch if served.start is None else (served.start + cursor.given - 1, batch)
                if (group := cursor.given - at.consumed) >= served.accumulate and at.feed.at_rest:
                    cursor.step_done(group)
            if group := cursor.given - at.consumed:
                cursor.step_done(group)
            if cursor.given == resumed_at > 0:
                session.progress.last_batch.skip_body(session, served.name)
            cursor.end()
        except GeneratorExit:  # `break`: skip the rest of the epoch's batches, also after a resume
            if leave_pass(session):
                cursor.end()
            raise


def _ends_without_pass(session: Session) -> bool:
    """Report, at the end of an outermost loop whose body did not run in this process, which names the code after it
    lacks.

    Return whether the process ends instead, because the run was over when it began and `finished="exit"` was given.
    """
    if session.progress.steps_here:
        return False
    totals, position = session.progress.walks.totals, session.position
    begun = all(totals.get(kind, -1) >= total for kind, total in position.targets.items())  # no loop is still to come
    if session.options.finished == "exit":
        if ends := begun and position.finished():
            session.metrics.keep_last_line()
            session.record(EXITS)
        return ends
    from .body_names import names_of_body  # only such a start needs it

    if names := names_of_body(session.tracked):
        session.tell(
            f"{session.path}: this loop is over, and its body does not run again. The code behind it reads "
            f"{', '.join(names)}, which the body sets: keep that in run.vars, or end the process with "
            'Run(..., finished="exit")',
            kind="after_the_loop",
            name=", ".join(names),
        )
    return False


def _exit_if(session: Session, *, exits: bool) -> None:
    """End the run and the process, if `exits`.

    Raises:
        SystemExit: 0, on all ranks.
    """
    if exits:
        if not session.left:  # without a block the run ends with its loop
            finish(session)
            leave(session, None)
        raise SystemExit(0)


LOOP_CODES.update({epochs.__code__, steps.__code__, batches.__code__})
