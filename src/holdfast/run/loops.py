"""Loops: the generators behind the training loops, and the outermost loop of a trainer that has one
of its own. They resume the run's position; a safe point follows each body.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import msgspec

from ..data.advice import Advice
from ..data.facts import Feed, known_length
from ..data.promise import UnprovenCode
from ..errors import UsageError
from ..legible import nth
from ..script.visible import script_frames
from .deferred_saves import LastBatchPolicy, variables_set_by_body
from .lifecycle import LOOP_CODES, LoopLifecycle
from .loader_cursor import BatchesArguments, LoaderCursor, Loaders
from .passes import ENDLESS, ForLoop, parse_consumed, parse_epochs, parse_loader_name, parse_steps

# a name in the body of a loop that trains; a metric has an update(), too
_TRAINS = re.compile(r"(?!val|eval|test|predict)(.*_)?(step|backward|train|learn|fit)(s|_|$)")
EXITS = "exits"  # the event of a process that ends because the run was over


class ForLoops(msgspec.Struct, frozen=True):
    """The `for` loops of one attempt."""

    loops: LoopLifecycle
    loaders: Loaders
    _last_batch: LastBatchPolicy
    _finished: str

    def iterate_epochs(self, walk: ForLoop, wanted: range) -> Generator[int, None, None]:
        """Yield the remaining epochs; a safe point follows the body of each."""
        first, total = wanted.start, wanted.stop
        loops, position = self.loops, self.loops.position
        with loops.registered_loop(walk), loops.running_outermost_loop("epochs", total, first):
            loops.start.undo_changes(ready=not position.in_epoch or position.current is None)
            while position.has_passes_left("epochs", total):
                loops.begin_epoch(first, total)
                yield position.epoch
                loops.lifetime.require_running()
                # a loop of this epoch was left, and the script still holds its iterator
                loops.walks.close_inside(walk)
                loops.end.count_left_pass()
                self._report_bare_loop()
                loops.end_epoch(total)
            exits = self._exit_if_no_pass()
        self._exit_when_finished(exits=exits)

    def iterate_steps(self, walk: ForLoop, total: int, name: str) -> Generator[int, None, None]:
        """Yield the remaining steps; inside `epochs`, those of this epoch."""
        loops, position = self.loops, self.loops.position
        if loops.walks.kinds == ("epochs",):
            yield from self.iterate_batches(walk, BatchesArguments(range(total), name, counts=True))
            return
        with loops.registered_loop(walk), loops.running_outermost_loop("steps", total):
            loops.start.undo_changes()
            loops.display.update(total=total if total < ENDLESS else None)
            loops.metrics.begin_step()
            while position.has_passes_left("steps", total):
                try:
                    yield position.step
                except GeneratorExit:
                    loops.mark_pass_left()
                    raise
                loops.points.step_done(final=position.step + 1 >= total)
            exits = self._exit_if_no_pass()
        self._exit_when_finished(exits=exits)

    def iterate_batches(
        self, walk: ForLoop, served: BatchesArguments
    ) -> Generator[Any, None, None]:
        """Yield the remaining batches of this epoch;
        a safe point follows each body, or each group of bodies.
        """
        loops, position = self.loops, self.loops.position
        name, named = served.name, loops.walks.named
        in_epochs = loops.walks.kinds == ("epochs",)
        with loops.registered_loop(walk):
            if name in named:
                raise UsageError(
                    f"the loop {name!r} a second time in one epoch: "
                    "give each loop its own name, and go through epochs "
                    "with `for epoch in run.epochs(3):` around it. "
                    "Without that, all of the run is one epoch"
                )
            named.add(name)
            if in_epochs:
                yield from self._iterate_loader(served)
                return
            with loops.running_outermost_loop("batches", 1):  # the whole run is one pass
                if not position.in_epoch and not position.left:
                    position.begin_epoch()
                loops.start.undo_changes(ready=position.current is None)
                if not position.left and not position.is_loader_done(name):
                    yield from self._iterate_loader(served)
                    loops.points.pass_by("end", final=True)
                exits = self._exit_if_no_pass()
        self._exit_when_finished(exits=exits)

    def _iterate_loader(self, served: BatchesArguments) -> Generator[Any, None, None]:
        loops, tracked = self.loops, self.loaders.tracked
        if loops.position.is_loader_done(served.name):
            self._last_batch.report_skipped_body(served.name, tracked, loops.reporter)
            return
        with closing(LoaderCursor(self.loaders, served)) as cursor:
            at = cursor.at
            resumed_at = at.consumed
            try:
                for batch in cursor:
                    self._last_batch.note_body_runs()
                    yield (
                        batch if served.start is None else (served.start + cursor.given - 1, batch)
                    )
                    if (
                        group := cursor.given - at.consumed
                    ) >= served.accumulate and at.feed.can_save_here:
                        cursor.step_done(group)
                if group := cursor.given - at.consumed:
                    cursor.step_done(group)
                if cursor.given == resumed_at > 0:
                    self._last_batch.report_skipped_body(served.name, tracked, loops.reporter)
                cursor.end_for_epoch()
            except GeneratorExit:  # `break`: a resume, too, skips the rest of the epoch's batches
                if loops.mark_pass_left():
                    cursor.end_for_epoch()
                raise

    def _exit_if_no_pass(self) -> bool:
        """Report which names the code after an outermost loop lacks, if its body did not run.

        Return whether the process exits instead, because the run was finished and has
        `finished="exit"`.
        """
        loops = self.loops
        if loops.progress.steps_here:
            return False
        totals, position = loops.walks.totals, loops.position
        # no loop is still to come
        begun = all(totals.get(kind, -1) >= total for kind, total in position.targets.items())
        if self._finished == "exit":
            if ends := begun and position.finished():
                loops.metrics.rewrite_last_line()
                loops.reporter.record(EXITS)
            return ends
        if names := variables_set_by_body(self.loaders.tracked):
            loops.reporter.warn(
                f"{loops.end.path}: this loop is over, "
                "and its body does not run again. The code behind it reads "
                f"{', '.join(names)}, which the body sets: "
                "keep that in run.vars, or end the process with "
                'Run(..., finished="exit")',
                kind="after_the_loop",
                name=", ".join(names),
            )
        return False

    def _exit_when_finished(self, *, exits: bool) -> None:
        """End the run and the process, if `exits`.

        Raises:
            SystemExit: 0, on all ranks.
        """
        if exits:
            if not self.loops.lifetime.left:  # without a block the run ends with its loop
                self.loops.end.finish_run()
                self.loops.end.release_attempt(None)
            raise SystemExit(0)

    def _report_bare_loop(self) -> None:
        """Report such a loop, once, in the body of the epoch that ends,
        if the epoch had no step inside.
        """
        position = self.loops.position
        if position.step != position.epoch_began or not self.loops.progress.take_body_unchecked():
            return
        walking = script_frames()
        if not walking:
            return
        frame = walking[-1]
        values = {**frame.f_globals, **frame.f_locals}
        found = next(_find_bare_loops(frame.f_code, frame.f_lasti, values), None)
        if found is not None:
            advice = Advice("a bare loop", f"Write `in run.batches({found.name}):` there")
            self.loops.reporter.warn(
                f"epoch {nth(position.epoch - position.first_epoch)} counts as one step, "
                f"although the loop at line {found.line} trained "
                f"{found.batches} batches of {found.name}: "
                f"the run is saved and stopped at ends of epochs alone. {advice}",
                kind="bare_loop",
                name=found.name,
            )


class _BareLoop(NamedTuple):
    name: str  # the loader's variable
    line: int | None
    batches: int


def _find_bare_loops(code: Any, at: int, values: Mapping[str, Any]) -> Iterator[_BareLoop]:
    """Yield the loops over loaders that train, in the body of the `for` at byte `at`."""
    found = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    outer = next((each for each in found if each.offset == at and each.opname == "FOR_ITER"), None)
    if outer is None:
        return
    within = [each for each in found if outer.offset < each.offset < outer.argval]
    for number, each in enumerate(within):
        if each.opname != "FOR_ITER":
            continue
        line = each.positions.lineno if each.positions else None
        head = [one for one in within[:number] if one.positions and one.positions.lineno == line]
        body = [one for one in within if each.offset < one.offset < each.argval]
        if any(_TRAINS.match(name) for one in body for name in _names_read(one)):
            for name in (name for one in head for name in _names_read(one)):
                count = known_length(values.get(name)) if _is_loader(values.get(name)) else None
                if count is not None and count > 1:
                    yield _BareLoop(name, line, count)


def _names_read(each: dis.Instruction) -> list[str]:
    is_read = each.opname.startswith("LOAD_") and each.opname != "LOAD_CONST"
    return [each.argval] if is_read and isinstance(each.argval, str) else []


def _is_loader(value: Any) -> bool:
    """Whether it is a loader, like torch's, and not a list or a model."""
    return (
        hasattr(value, "batch_size")
        and hasattr(value, "dataset")
        and hasattr(type(value), "__iter__")
    )


LOOP_CODES.update(
    each.__code__
    for each in (ForLoops.iterate_epochs, ForLoops.iterate_steps, ForLoops.iterate_batches)
)


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
