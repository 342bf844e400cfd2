"""Loops: the generators behind the training loops. They resume the run's position; a safe point
follows each body.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import msgspec

from ..data.advice import Advice
from ..data.facts import known_length
from ..errors import UsageError
from ..legible import nth
from .last_batch import LastBatchPolicy, variables_set_by_body
from .lifecycle import LOOP_CODES, LoopLifecycle
from .loader_cursor import BatchesArguments, LoaderCursor, Loaders
from .passes import ENDLESS, ForLoop
from .visible import script_frames

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
