"""BlocklessRun: a run without a `with` block. It ends with its outermost loop and takes signals
only in that loop.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from opcode import opname
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

from ..errors import HoldfastError, Stopped, UsageError
from ..terminal import flush, say, warn
from .finish import AttemptEnd
from .position import RunProgress
from .stop import Lifetime

STOPPED = 75  # the exit code of a stop

# runs of this process that have not ended, or whose end must still be reported
_blockless: list[BlocklessRun] = []


class LoopLeft(HoldfastError):
    """The outermost loop was left by an exception, or was still open when its process ended."""


class BlocklessRun:
    """A run that `start()` began, until it ends."""

    def __init__(
        self,
        lifetime: Lifetime,
        progress: RunProgress,
        end: AttemptEnd,
        take_signals: Callable[[], None],
        let_go: Callable[[], None],
    ) -> None:
        self.lifetime, self._progress, self._end, self.path = lifetime, progress, end, end.path
        self.place = os.path.realpath(self.path)
        self._take_signals = take_signals  # and show the progress of the loop
        self._let_go = let_go  # tells the Run that it has ended
        self.thread = threading.get_ident()
        self._walker = self.thread  # the thread that walks the outermost loop
        self._finished = False  # the end is durable, and journalled
        # an error to raise at the next call: `break` cannot raise it
        self._late: BaseException | None = None
        # the code in which an exception left the loop; at_exit looks for it
        self._left_in: CodeType | None = None
        _blockless.append(self)

    def on_loop_begin(self) -> None:
        """Prepare the run before its outermost loop begins."""
        self._walker = threading.get_ident()
        self._take_signals()

    def on_loop_end(self) -> None:
        """Finish the run after its outermost loop. Errors are raised at the loop."""
        try:
            self._end.finish_run()
        except BaseException as error:
            self.end_with_error(error)
            raise
        self._finished = True
        self.end_with_error(None)

    def on_loop_left(self, ours: Collection[CodeType]) -> None:
        """Finish the run after `break` or `return` left the loop; `ours`: the code of our
        generators.

        An error of this end is kept, and the next call of the run raises it.
        """
        # the garbage collector closed it, on a thread of ours
        if threading.get_ident() != self._walker:
            return
        found = detect_loop_exit(ours)
        if not found.on_purpose:
            self._left_in = found.code
            raised = self._progress.walks.raised
            if found.unclear and raised is None:
                say(
                    f"{self.path}: the loop ended at step {self._progress.position.step} "
                    "with an exception, or because an iterator around "
                    "it had enough (islice, zip): not finished, "
                    f"saved up to step {self._end.saved_step}. A limit belongs into "
                    "the loop itself, as in run.steps(50)"
                )
            self.end_with_error(raised or LoopLeft("the loop was left by an exception"))
            return
        try:
            self.on_loop_end()
        except BaseException as error:
            self._late = error
            _blockless.append(self)
            if not isinstance(error, Stopped):
                warn(f"{self.path}: the end is not saved: {error}")

    def end_unfinished(self) -> None:
        """End the run, because a new one begins at its path. It is not marked as finished."""
        if not self.lifetime.is_over:
            self.end_with_error(LoopLeft("another Run began at this path in the same process"))
        if self in _blockless:
            _blockless.remove(self)

    def raise_deferred_error(self) -> None:
        """Raise the error that the run's end has kept, once.

        Raises:
            HoldfastError, Stopped: the end after a `break` has failed or was a stop.
        """
        if self._late is not None:
            late, self._late = self._late, None
            raise late

    def log_after_loop(self, values: dict[str, float | str]) -> None:
        """Log numbers after the loop. They count for the run's end, and are durable on return."""
        if self.lifetime.is_in_forked_child or not self._finished:
            raise UsageError(f"{self.path}: run.log(): the run has ended, before its loop did")
        self._end.log_after_end(values)

    def end_with_error(self, error: BaseException | None) -> None:
        """End the run after the loop raised `error`: a stop, a failed save, an error of a
        loader.
        """
        if not self.lifetime.left:
            self._let_go()
            self._end.release_attempt(error)
        if self._left_in is None and self in _blockless:
            _blockless.remove(self)

    def at_exit(self) -> int:
        """Journal an unfinished run when the process ends; return the process's exit code,
        or 0 to keep it.
        """
        if self.lifetime.is_in_forked_child:
            return 0
        if not self.lifetime.is_over:
            progress = self._progress
            where = f"step {progress.position.step}"
            where += " of its loop" if progress.walks.open else ""
            say(f"{self.path}: not finished: the process ends at {where}")
            self.end_with_error(LoopLeft("the process ended before the loop did"))
        last = getattr(sys, "last_value", None)
        if isinstance(last, BaseException) and any(
            code is self._left_in for code in _code_objects(last.__traceback__)
        ):
            self._end.journal_failure(last)
        if self._late is None:
            return 0
        return (
            STOPPED if isinstance(self._late, Stopped) else int(getattr(self._late, "exit_code", 1))
        )


def blockless_run_of(lifetime: Lifetime) -> BlocklessRun | None:
    """Return the run of start() whose attempt this is; None if it has a block or has
    ended.
    """
    return next((each for each in _blockless if each.lifetime is lifetime), None)


_POPS = frozenset({"POP_TOP", "POP_ITER"})  # CPython uses the second since 3.14
# a generator around ours, such as tqdm's, that is closed too
_SUSPENDED = frozenset({"YIELD_VALUE", "RESUME"})
_GENERATOR = 0x20  # of a code's flags, as inspect.CO_GENERATOR
# an iterator around ours raised, or reached its own limit (islice)
_TAKES = frozenset({"FOR_ITER"})


class LoopExit(NamedTuple):
    """How a loop was left."""

    on_purpose: bool  # by `break` or `return`
    unclear: bool  # an iterator around it may have reached its own limit
    code: CodeType | None  # code of the function or module that contains the loop


def detect_loop_exit(ours: Collection[CodeType]) -> LoopExit:
    """Determine how a loop was left, while its generator (its code is in `ours`) is being closed on
    this thread.

    The generator receives GeneratorExit in each case. The frame that released it shows the
    difference: `break` and `return` pop the iterator with a special instruction; an exception
    leaves the frame at the instruction that raised it. Unlisted instructions count as an exception:
    then nothing is committed as finished, and the next start resumes from the last save.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the frames are what this is about
    while frame is not None and frame.f_code not in ours:
        frame = frame.f_back
    frame = frame.f_back if frame is not None else None
    while (
        frame is not None
        and frame.f_code.co_flags & _GENERATOR
        and _current_instruction(frame) in _SUSPENDED
    ):
        frame = frame.f_back
    if frame is None:
        return LoopExit(on_purpose=False, unclear=False, code=None)
    now = _current_instruction(frame)
    return LoopExit(on_purpose=now in _POPS, unclear=now in _TAKES, code=frame.f_code)


def _current_instruction(frame: FrameType) -> str:
    return opname[frame.f_code.co_code[frame.f_lasti]] if frame.f_lasti >= 0 else ""


def _code_objects(trace: TracebackType | None) -> Iterator[CodeType]:
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next


def end_run_at(path: Path) -> None:
    """End the run that this thread began at `path` with start(), because a new run begins there."""
    place = os.path.realpath(path)
    for blockless in [*_blockless]:
        if blockless.place == place and blockless.thread == threading.get_ident():
            blockless.end_unfinished()


def end_runs_at_exit() -> None:
    """End all unfinished runs of start() when the process exits.

    It may set the exit code, so `import holdfast` registers it.
    """
    codes = [code for blockless in [*_blockless] if (code := blockless.at_exit())]
    _blockless.clear()
    if codes:  # the interpreter would exit with 0, and an exception raised here cannot change that
        if "logging" in sys.modules:
            with suppress(Exception):
                sys.modules["logging"].shutdown()
        flush()
        os._exit(codes[0])
