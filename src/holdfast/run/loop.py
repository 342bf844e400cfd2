"""Loop: the outermost loop of a run, for our generators and for programs with a loop of their
own, as trainers have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any

from ..data.facts import Feed
from ..data.promise import UnprovenCode
from ..errors import Mismatch, UsageError
from ..terminal import say
from . import blockless
from .finish import count_left_pass, end_left_loop
from .loader_cursor import BatchesArguments, LoaderCursor
from .opening import require_loop_entered, restore_epoch_rng, undo_changes_before_loop
from .passes import ENDLESS, ForLoop, parse_consumed, parse_epochs, parse_loader_name, parse_steps
from .ranks import require_same_loop
from .safe_point import safe_point, step_done
from .session import Session

_MAY_BEGIN = {(): ("epochs", "steps", "batches", "loop"), ("epochs",): ("batches", "steps")}

LOOP_CODES: set[CodeType] = set()  # code objects of our loop generators
# begins the names of the events of adapters, so that none of them is one of the journal's own
ADAPTER = "adapter:"


class Loop:
    """The loop of a run that another program walks, such as a trainer: it calls these methods where
    they belong.

        loop = run.loop(epochs=10)
        try:
            while loop.goes_on:
                loop.begin_epoch()
                for batch in loop.batches(loader):  # those that remain; they may be fetched ahead
                    ...
                    loop.step_done()  # a safe point
                loop.end_epoch()  # a safe point, after the epoch's validation
        except BaseException as error:
            loop.leave(error)
            raise
        loop.leave()

    A safe point saves when it is time, and raises `Stopped` (exit code 75) when the run must stop.
    The caller decides where it is: the whole state must be consistent there, with no gradient
    pending.
    """

    def __init__(
        self,
        session: Session,
        leave: Callable[[BaseException | None], None],
        epochs: int | range | None = None,
        steps: int | None = None,
    ) -> None:
        """`leave` ends the run. `epochs` or `steps`: its total; with both, `epochs` is the number
        of epochs that `steps` make up.
        """
        self._session, self._position, self._leave = session, session.position, leave
        if steps is not None:
            self._kind, wanted = "steps", range(parse_steps(steps))
            session.progress.note_epochs_in_steps(
                0 if epochs is None else len(parse_epochs(epochs))
            )
        elif epochs is not None:
            self._kind, wanted = "epochs", parse_epochs(epochs)
        else:
            raise UsageError("run.loop(): give epochs=, or steps= for a loop without epochs")
        self._first, self._total = wanted.start, wanted.stop
        self._cursor: LoaderCursor | None = None
        # whether this loop is inside an epoch; a restored position may be before it is
        self._begun = False
        with ExitStack() as around:
            around.enter_context(registered_loop(session, ForLoop("loop")))
            around.enter_context(
                running_outermost_loop(session, self._kind, self._total, self._first)
            )
            self._around = around.pop_all()

    @property
    def goes_on(self) -> bool:
        """Whether steps remain. A run that was left early goes on only if its total was raised."""
        return self._position.has_passes_left(self._kind, self._total)

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the next one."""
        return self._position.epoch

    @property
    def in_epoch(self) -> bool:
        """Whether that epoch has begun; after a restore: whether the checkpoint lies inside it."""
        return self._position.in_epoch

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self._position.step

    @property
    def durations(self) -> dict[str, Any]:
        """What a clock says, kept by the caller:
        saved and restored with the run, and compared by no drill.
        """
        return self._session.capture.durations

    @property
    def seed(self) -> int:
        """The seed of the run's order of data:
        `Run(seed=...)`, or the one with which the run began.
        """
        return self._session.progress.seed or 0

    def consumed(self, name: str = "train") -> int:
        """Number of batches of the loader `name` that are done in this epoch."""
        return self._position.consumed(name)

    def reopen(self) -> None:
        """Let a run continue that ended before its total,
        because the limit that had ended it was raised.
        """
        self._position.left.pop(self._kind, None)

    def record(self, event: str, /, **facts: Any) -> None:
        """Write an event of the caller's own to the journal, as "adapter:EVENT"; the newest one is
        what it remembers.

        Raises:
            UsageError: a fact has the name "event" or "time", which the journal sets.
        """
        self._session.lifetime.require_running()
        if taken := {"event", "time"} & facts.keys():
            raise UsageError(
                f"loop.record(): the journal itself sets {min(taken)!r}; give the fact another name"
            )
        self._session.attempt.record(ADAPTER + event, **facts)
        self._session.attempt.flush()

    def note_untried(self, found: UnprovenCode | None) -> None:
        """Let saves wait for the ends of epochs until a drill has proven the framework; None: it is
        proven.

        Call it before the first epoch, on every rank. Each start prints a line about it.
        """
        session = self._session
        session.waiting.note_loader(None, found)

    def begin_epoch(self) -> None:
        """Begin the next epoch, or continue the epoch of the restored checkpoint with its
        random numbers.
        """
        session, position = self._session, self._position
        session.lifetime.require_running()
        if self._begun:
            raise UsageError(
                "loop.begin_epoch(): the epoch before has not ended; loop.end_epoch() ends it"
            )
        undo_changes_before_loop(session, ready=not position.in_epoch or position.current is None)
        begin_epoch(session, self._first, self._total if self._kind == "epochs" else None)
        self._begun = True

    def batches(self, loader: Iterable[Any] | Feed, name: str = "train") -> Iterator[Any]:
        """Return the remaining batches of `loader` in this epoch.

        The first fetch restores the random numbers; whatever draws some at the beginning of an
        epoch comes before it. The caller may fetch any number of batches ahead of those that
        `step_done` counts.
        """
        self._session.lifetime.require_running()
        arguments = BatchesArguments(loader, parse_loader_name(name))
        if self._kind == "epochs" and not self._begun:
            raise UsageError("loop.batches(): no epoch has begun; loop.begin_epoch() begins one")
        if self._cursor is not None:
            raise UsageError(
                f"loop.batches(): the loader {self._cursor.at.name!r} "
                "is in progress; end its epoch first"
            )
        if self._position.is_loader_done(name):
            return iter(())
        self._cursor = LoaderCursor(self._session, arguments, ahead=True)
        return self._cursor

    def settle(self) -> None:
        """Restore the random numbers, and undo what the program has changed in the state since the
        run was entered.

        The first fetch of `batches` does so by itself. A loop without loaders calls this before its
        first step; one that ends its epochs before their loaders, when it takes no more batches.
        """
        session = self._session
        session.lifetime.require_running()
        undo_changes_before_loop(session)
        if session.progress.steps_here == 0:
            session.metrics.begin_step()

    def step_done(self, batches: int = 1) -> None:
        """Mark a step that consumed the next `batches` of the loader: a safe point.

        Raises:
            Stopped: the state is saved; the process must end and be run again.
        """
        self._session.lifetime.require_running()
        final = self._kind == "steps" and self.step + 1 >= self._total
        if self._cursor is None:
            step_done(self._session, final=final)
        else:
            self._cursor.step_done(parse_consumed(batches, 1), final=final)

    def end_epoch(self, batches: int = 0, *, last: bool = False) -> None:
        """End the epoch: a safe point. What remains of its loader is skipped.

        `batches`: of a last step that `step_done` has not marked, because validation had to come
        first. A run never resumes between the two. `last`: the run ends here, before its total.

        Raises:
            Stopped: the state is saved; the process must end and be run again.
            Mismatch: no batch was fetched after a restore inside the epoch, and `settle` was not
                called.
        """
        session, cursor = self._session, self._cursor
        session.lifetime.require_running()
        if not self._begun:
            raise UsageError("loop.end_epoch(): no epoch has begun; loop.begin_epoch() begins one")
        if cursor is not None and session.origin.baseline is not None:
            raise Mismatch(
                f"{session.path}: the checkpoint lies behind the "
                "last batch that this epoch took of the loader "
                f"{cursor.at.name!r}, so that its random numbers "
                "were not restored: call loop.settle() when the "
                "batches have ended, before the validation"
            )
        if parse_consumed(batches, 0):
            if cursor is not None:
                cursor.consume(batches)
            session.position.record_safe_point("step")
            session.script_checks.check_safe_point()
        if cursor is not None:
            cursor.end_for_epoch()
            cursor.close()
            self._cursor = None
        self._begun = False
        if last:
            session.position.left[self._kind] = self._total
        end_epoch(session, self._total if self._kind == "epochs" else None, last=last)

    def leave(self, error: BaseException | None = None) -> None:
        """End the run. Without an error the state is saved, and the run is finished; with one,
        nothing is saved.
        """
        session = self._session
        if session.lifetime.left:
            return
        reason = error if error is not None or not self.goes_on else GeneratorExit()
        is_left = isinstance(reason, GeneratorExit) and not session.lifetime.is_over
        if is_left and session.saves.saved == session.position.checkpoint_name:
            session.position.record_safe_point("step")  # that the run was left is part of its state
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            if is_left:
                cursor.end_for_epoch()
            cursor.close()
        self._around.__exit__(None if reason is None else type(reason), reason, None)
        self._leave(error)


def begin_epoch(session: Session, first: int, total: int | None) -> None:
    """Begin the next epoch, or continue the epoch of the restored checkpoint.

    Epochs are counted from `first`.
    """
    position, progress = session.position, session.progress
    if position.in_epoch:
        restore_epoch_rng(session)
    else:
        progress.note_epoch_begin(session.tracked.generators())
        session.metrics.means.clear()
    progress.walks.named.clear()
    session.display.update(
        epoch=position.epoch - first, epochs=None if total is None else total - first
    )


def end_epoch(session: Session, total: int | None, *, last: bool = False) -> None:
    """End the epoch: a safe point. `last`: the run ends here, before its total."""
    require_loop_entered(session)
    ended = session.position.epoch
    session.position.end_epoch()
    final = last or (total is not None and session.position.epoch >= total)
    safe_point(session, "end", epoch=ended, final=final)


def mark_pass_left(session: Session) -> bool:
    """Record that the current pass was left, so that it is counted when the script continues.

    Return False if the run has ended.
    """
    if session.lifetime.is_over:
        return False
    session.walks.leave_pass(session.metrics.take_logged())
    return True


@contextmanager
def running_outermost_loop(
    session: Session, kind: str, total: int, first: int = 0
) -> Iterator[None]:
    """Run the outermost loop inside this block; record whether it ends, is left, or raises."""
    _begin_outermost(session, kind, total, first)
    alone, walks = blockless.blockless_run_of(session.attempt), session.walks
    if alone is not None:
        alone.on_loop_begin()
    try:
        yield
    except (
        GeneratorExit
    ):  # `break`, or an exception leaving the block; after an exception nothing is saved
        if not session.lifetime.is_over:
            walks.leave_outermost(session.metrics.take_logged())
            if alone is not None:
                alone.on_loop_left(LOOP_CODES)
        raise
    except (
        BaseException
    ) as error:  # the loader or a save raised: the position stays at the last safe point
        walks.take_left_outermost()
        if alone is not None:
            alone.end_with_error(error)
        raise
    walks.take_left_outermost()
    if alone is not None:
        alone.on_loop_end()


def _begin_outermost(session: Session, kind: str, total: int, first: int) -> None:
    end_left_loop(session)
    require_same_loop(session.ranks, kind, total)
    progress = session.progress
    targets = session.position.targets
    if targets and ("batches" in targets) != (kind == "batches"):
        raise UsageError(
            "this run has walked run.batches() outside of run.epochs(), "
            "and then that loop is all of the run. Put "
            "every run.batches() inside `for epoch in run.epochs(...):`"
        )
    _require_passes_left(session, kind, total)
    if kind == "epochs":
        session.position.begin_epochs(first)
    was = targets.get(kind, total)
    # only after a restore: a second loop of the script is not reported
    if total > was and progress.steps_here == 0:
        session.attempt.record("extended", loop=kind, was=was, now=total)
        say(
            f"{session.path}: {kind} were to end at {was}, "
            f"now {f'at {total}' if total < ENDLESS else 'without end'}"
        )
    targets[kind] = max(total, was)
    if total < ENDLESS:
        session.attempt.record("loop", kind=kind, total=total)
    progress.walks.begin_outermost(kind, total)
    progress.restart_step_clock()


def _require_passes_left(session: Session, kind: str, total: int) -> None:
    """Require that the loop has passes to make.

    Raises:
        UsageError: this process already finished such a loop; this one would have no passes.
    """
    totals, position = session.walks.totals, session.position
    if kind == "batches":
        if "batches" in position.left and kind in totals:
            raise UsageError(
                "the run ended when the first run.batches() was left, "
                "so that this one would be empty: put both of "
                "them inside `for epoch in run.epochs(1):`"
            )
    elif total <= totals.get(kind, -1):
        rounds = (
            "`for epoch in run.epochs(3):` around it"
            if kind == "steps"
            else "a Run of its own for each training"
        )
        raise UsageError(
            f"run.{kind}() a second time, up to no more than the first time: "
            "it counts over all of the run, so that "
            f"this loop would be empty. Write {rounds}, or give a larger total"
        )
    totals[kind] = total


@contextmanager
def registered_loop(session: Session, walk: ForLoop) -> Iterator[None]:
    """Within this block, `walk` is the innermost loop in progress; check that it may begin here."""
    session.lifetime.require_running()
    count_left_pass(session)
    walks = session.walks
    kinds = walks.kinds
    if walk.kind not in _MAY_BEGIN.get(kinds, ()):
        raise UsageError(
            f"run.{walk.kind}() inside run.{kinds[-1]}(): "
            "a safe point of the inner loop would lie in the middle of "
            "the outer one's body. Put run.epochs() around run.batches(), "
            "or walk two loaders side by side: "
            "run.batches(holdfast.data.Zip(a, b)). "
            "A loop that `break` has left must not be held by a variable"
        )
    walks.open.append(walk)
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        walks.note_error(error)
        if (
            session.lifetime.over is not None
            and (alone := blockless.blockless_run_of(session.attempt)) is not None
        ):
            alone.end_with_error(error)  # a stop ends the outermost loop as well
        raise
    finally:
        walks.open.remove(walk)
