"""Loop: the outermost loop of a run, for our generators and for programs with a loop of their
own, as trainers have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from ..data.facts import Feed
from ..data.promise import UnprovenCode
from ..errors import UsageError
from .loader_cursor import BatchesArguments, LoaderCursor, Loaders
from .passes import ForLoop, parse_consumed, parse_epochs, parse_loader_name, parse_steps

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
        loaders: Loaders,
        durations: dict[str, Any],
        leave: Callable[[BaseException | None], None],
        epochs: int | range | None = None,
        steps: int | None = None,
    ) -> None:
        """`leave` ends the run. `durations`: what a clock of the caller's says.

        `epochs` or `steps`: its total; with both, `epochs` is the number of epochs that `steps`
        make up.
        """
        self._loaders, self._loops, self._leave = loaders, loaders.loops, leave
        self._durations, self._position = durations, self._loops.position
        if steps is not None:
            self._kind, wanted = "steps", range(parse_steps(steps))
            self._loops.progress.note_epochs_in_steps(
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
            around.enter_context(self._loops.registered_loop(ForLoop("loop")))
            around.enter_context(
                self._loops.running_outermost_loop(self._kind, self._total, self._first)
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
        return self._durations

    @property
    def seed(self) -> int:
        """The seed of the run's order of data:
        `Run(seed=...)`, or the one with which the run began.
        """
        return self._loops.progress.seed or 0

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
        self._loops.lifetime.require_running()
        if taken := {"event", "time"} & facts.keys():
            raise UsageError(
                f"loop.record(): the journal itself sets {min(taken)!r}; give the fact another name"
            )
        self._loops.reporter.attempt.record(ADAPTER + event, **facts)
        self._loops.reporter.attempt.flush()

    def note_untried(self, found: UnprovenCode | None) -> None:
        """Let saves wait for the ends of epochs until a drill has proven the framework; None: it is
        proven.

        Call it before the first epoch, on every rank. Each start prints a line about it.
        """
        self._loaders.waiting.note_loader(None, found)

    def begin_epoch(self) -> None:
        """Begin the next epoch, or continue the epoch of the restored checkpoint with its
        random numbers.
        """
        loops, position = self._loops, self._position
        loops.lifetime.require_running()
        if self._begun:
            raise UsageError(
                "loop.begin_epoch(): the epoch before has not ended; loop.end_epoch() ends it"
            )
        loops.start.undo_changes(ready=not position.in_epoch or position.current is None)
        loops.begin_epoch(self._first, self._total if self._kind == "epochs" else None)
        self._begun = True

    def batches(self, loader: Iterable[Any] | Feed, name: str = "train") -> Iterator[Any]:
        """Return the remaining batches of `loader` in this epoch.

        The first fetch restores the random numbers; whatever draws some at the beginning of an
        epoch comes before it. The caller may fetch any number of batches ahead of those that
        `step_done` counts.
        """
        self._loops.lifetime.require_running()
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
        self._cursor = LoaderCursor(self._loaders, arguments, ahead=True)
        return self._cursor

    def settle(self) -> None:
        """Restore the random numbers, and undo what the program has changed in the state since the
        run was entered.

        The first fetch of `batches` does so by itself. A loop without loaders calls this before its
        first step; one that ends its epochs before their loaders, when it takes no more batches.
        """
        loops = self._loops
        loops.lifetime.require_running()
        loops.start.undo_changes()
        if loops.progress.steps_here == 0:
            loops.metrics.begin_step()

    def step_done(self, batches: int = 1) -> None:
        """Mark a step that consumed the next `batches` of the loader: a safe point.

        Raises:
            Stopped: the state is saved; the process must end and be run again.
        """
        self._loops.lifetime.require_running()
        final = self._kind == "steps" and self.step + 1 >= self._total
        if self._cursor is None:
            self._loops.points.step_done(final=final)
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
        loops, cursor = self._loops, self._cursor
        loops.lifetime.require_running()
        if not self._begun:
            raise UsageError("loop.end_epoch(): no epoch has begun; loop.begin_epoch() begins one")
        if cursor is not None:
            loops.start.require_settled(cursor.at.name)
        if parse_consumed(batches, 0):
            if cursor is not None:
                cursor.consume(batches)
            loops.points.count_step()
        if cursor is not None:
            cursor.end_for_epoch()
            cursor.close()
            self._cursor = None
        self._begun = False
        if last:
            self._position.left[self._kind] = self._total
        loops.end_epoch(self._total if self._kind == "epochs" else None, last=last)

    def leave(self, error: BaseException | None = None) -> None:
        """End the run. Without an error the state is saved, and the run is finished; with one,
        nothing is saved.
        """
        loops = self._loops
        if loops.lifetime.left:
            return
        reason = error if error is not None or not self.goes_on else GeneratorExit()
        is_left = isinstance(reason, GeneratorExit) and not loops.lifetime.is_over
        if is_left:
            loops.end.count_leaving()
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            if is_left:
                cursor.end_for_epoch()
            cursor.close()
        self._around.__exit__(None if reason is None else type(reason), reason, None)
        self._leave(error)
