"""LoopLifecycle: how the loops of an attempt begin, go through their epochs, and end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

import msgspec

from ..errors import UsageError
from ..terminal import ProgressLine, say
from . import blockless
from .finish import AttemptEnd
from .metrics import MetricsLog
from .opening import LoopStart
from .passes import ENDLESS, ForLoop, LoopStack
from .position import Position, RunProgress
from .report import Reporter
from .safe_point import SafePoints
from .stop import Lifetime

_MAY_BEGIN = {(): ("epochs", "steps", "batches", "loop"), ("epochs",): ("batches", "steps")}

LOOP_CODES: set[CodeType] = set()  # code objects of our loop generators


class LoopLifecycle(msgspec.Struct, frozen=True):
    """What all loops of an attempt share: its progress, and what happens at their begin, at safe
    points and at their end.
    """

    lifetime: Lifetime
    progress: RunProgress
    metrics: MetricsLog
    reporter: Reporter
    display: ProgressLine
    start: LoopStart
    points: SafePoints
    end: AttemptEnd

    @property
    def position(self) -> Position:
        return self.progress.position

    @property
    def walks(self) -> LoopStack:
        return self.progress.walks

    def begin_epoch(self, first: int, total: int | None) -> None:
        """Begin the next epoch, or continue the epoch of the restored checkpoint.

        Epochs are counted from `first`.
        """
        if self.position.in_epoch:
            self.start.restore_epoch_rng()
        else:
            self.start.note_epoch_begin()
            self.metrics.means.clear()
        self.walks.named.clear()
        self.display.update(
            epoch=self.position.epoch - first, epochs=None if total is None else total - first
        )

    def end_epoch(self, total: int | None, *, last: bool = False) -> None:
        """End the epoch: a safe point. `last`: the run ends here, before its total."""
        self.start.require_loop_entered()
        ended = self.position.epoch
        self.position.end_epoch()
        final = last or (total is not None and self.position.epoch >= total)
        self.points.pass_by("end", epoch=ended, final=final)

    def mark_pass_left(self) -> bool:
        """Record that the current pass was left, so that it is counted when the script continues.

        Return False if the run has ended.
        """
        if self.lifetime.is_over:
            return False
        self.walks.leave_pass(self.metrics.take_logged())
        return True

    @contextmanager
    def running_outermost_loop(self, kind: str, total: int, first: int = 0) -> Iterator[None]:
        """Run the outermost loop inside this block; record whether it ends, is left, or raises."""
        self._begin_outermost(kind, total, first)
        alone, walks = blockless.blockless_run_of(self.lifetime), self.walks
        if alone is not None:
            alone.on_loop_begin()
        try:
            yield
        # `break`, or an exception leaving the block; after an exception nothing is saved
        except GeneratorExit:
            if not self.lifetime.is_over:
                walks.leave_outermost(self.metrics.take_logged())
                if alone is not None:
                    alone.on_loop_left(LOOP_CODES)
            raise
        # the loader or a save raised: the position stays at the last safe point
        except BaseException as error:
            walks.take_left_outermost()
            if alone is not None:
                alone.end_with_error(error)
            raise
        walks.take_left_outermost()
        if alone is not None:
            alone.on_loop_end()

    def _begin_outermost(self, kind: str, total: int, first: int) -> None:
        self.end.end_left_loop()
        self.start.require_same_loop(kind, total)
        targets, reporter = self.position.targets, self.reporter
        if targets and ("batches" in targets) != (kind == "batches"):
            raise UsageError(
                "this run has walked run.batches() outside of run.epochs(), "
                "and then that loop is all of the run. Put "
                "every run.batches() inside `for epoch in run.epochs(...):`"
            )
        self._require_passes_left(kind, total)
        if kind == "epochs":
            self.position.begin_epochs(first)
        was = targets.get(kind, total)
        # only after a restore: a second loop of the script is not reported
        if total > was and self.progress.steps_here == 0:
            reporter.attempt.record("extended", loop=kind, was=was, now=total)
            say(
                f"{self.end.path}: {kind} were to end at {was}, "
                f"now {f'at {total}' if total < ENDLESS else 'without end'}"
            )
        elif total < was and self.progress.steps_here == 0:
            self._report_fewer(kind, total, was)
        targets[kind] = max(total, was)
        if total < ENDLESS:
            reporter.attempt.record("loop", kind=kind, total=total)
        self.walks.begin_outermost(kind, total)
        self.progress.restart_step_clock()

    def _report_fewer(self, kind: str, total: int, was: int) -> None:
        """Say that no step is made, if fewer passes are asked for than have begun."""
        position = self.position
        if position.finished() or position.has_passes_left(kind, total) or was >= ENDLESS:
            return
        begun = position.epoch + position.in_epoch if kind == "epochs" else position.step
        say(
            f"{self.end.path}: run.{kind}({total}) makes no step: {begun} of {was} have begun. "
            f"Ask for {was} to go on"
        )

    def _require_passes_left(self, kind: str, total: int) -> None:
        """Require that the loop has passes to make.

        Raises:
            UsageError: this process already finished such a loop; this one would have no passes.
        """
        totals, position = self.walks.totals, self.position
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
    def registered_loop(self, walk: ForLoop) -> Iterator[None]:
        """Within this block, `walk` is the innermost loop in progress. It must be allowed here."""
        self.lifetime.require_running()
        self.end.count_left_pass()
        walks = self.walks
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
                self.lifetime.over is not None
                and (alone := blockless.blockless_run_of(self.lifetime)) is not None
            ):
                alone.end_with_error(error)  # a stop ends the outermost loop as well
            raise
        finally:
            walks.open.remove(walk)
