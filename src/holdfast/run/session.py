"""Session: the record of the parts of one attempt. It makes them, claims the run, and never
changes.

Only what begins, walks, saves and ends an attempt takes all of it: `opening`, `loop` and `loops`
with their `loader_cursor`, `safe_point`, `finish` and `blockless`. Each part takes what it needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..job import job
from ..rules import Auto, Best, parts
from ..terminal import ProgressLine as Display
from ..terminal import answer, speak_for
from . import settings
from .alive import Alive
from .capture import StateCapture
from .drilled import DrilledRun
from .failures import SaveFailures
from .last_batch import LastBatch
from .metrics import Bests, Metrics
from .objects import STEERED, adapter_for
from .options import Options
from .origin import Origin
from .position import Progress
from .ranks import facts, here, present, require_alike
from .readback import ReadBack
from .report import Reporter
from .saver import Saver
from .script_checks import ScriptChecks
from .stop import Lifetime, Stop
from .tracked import Tracked
from .unproven import Waiting
from .watch import Watch
from .windows import MOST_POINTS, Windows

if TYPE_CHECKING:
    from .mirrors import Mirrors
    from .pace import Pace


class Session:
    """The parts of one attempt."""

    def __init__(self, options: Options, tracked: Tracked) -> None:
        self.options, self.path, self.tracked = options, options.path, tracked
        tracked.begin()
        self.watch = Watch(tracked)
        self.ranks = here()
        speak_for(self.ranks.rank)
        self.origin, self.progress = Origin(), Progress(options.seed)
        self.position, self.walks = self.progress.position, self.progress.walks
        self.alive = Alive(self.position)
        self._agree()
        self._claim()
        ranks, origin, progress, drilled = self.ranks, self.origin, self.progress, self.drilled
        self.reporter = reporter = Reporter(self.attempt, self.position, private=options.private)
        self.metrics = Metrics(ranks, self.position, reporter)
        self.capture = StateCapture(options, tracked, ranks, origin, progress, self.metrics)
        self.drill = DrilledRun(
            drilled,
            ranks,
            tracked,
            origin,
            progress,
            self.position,
            reporter,
            self.watch.entered_in,
        )
        self.last_batch = LastBatch(ranks, progress)
        pace: Pace | None = None
        if isinstance(options.every, Auto) and ranks.leads:
            from .pace import Pace  # only such runs need it

            pace = Pace(options.every, progress, reporter, self.stop, options.background)
        self.waiting = Waiting(
            ranks,
            progress,
            reporter,
            getattr(options.every, "steps", None) is not None,
            drilled.digests,
        )
        bests = [rule for rule in parts(options.keep) if isinstance(rule, Best)]
        self.saves = Saver(
            options,
            ranks,
            self.store,
            progress,
            reporter,
            self.capture,
            self.stop,
            self.windows,
            self.drill,
            self.last_batch,
            self.waiting,
            Bests(bests, ranks, self.store, self.windows),
            pace,
            ReadBack(self.store),
            SaveFailures(self.store, reporter.tell),
            (lambda: None) if self.mirrors is None else self.mirrors.committed,
            progress.mark(),
        )
        self.script_checks = ScriptChecks(
            tracked,
            self.store.ranks,
            self.watch,
            progress,
            reporter,
            self.saves,
            options.stop_on_nan,
        )
        self.stop.answer_with(self._answer)
        self.around = ExitStack()  # contexts that stay open while the attempt is alive
        self.lifetime = Lifetime(self.attempt)

    def _answer(self, signal: str) -> None:
        """Tell at once what becomes of a request to stop: called by the signal handler."""
        progress, saved = self.progress, self.saves.saved
        if not self.walks.open:
            answer(f"{signal}: stops at the next safe point")
            return
        left_s = progress.last_step_s - (time.monotonic() - progress.last_point_s)
        lost = self.position.step - (saved.step if saved else 0)
        answer(
            f"{signal}: finishing step {self.position.step + 1}"
            + (f" (about {left_s:.0f} s)" if left_s >= 1 else "")
            + ", then saving. Ctrl-C again: stop now and lose "
            + (f"{lost} step{'s' if lost > 1 else ''} and this one" if lost else "this step")
        )

    def _agree(self) -> None:
        """Determine the facts on which the attempt depends,
        and compare them with the other ranks.
        """
        ranks, options = self.ranks, self.options
        with ranks.together("options"):
            self.drilled = settings.drilled(options.path)
            self.stop, self.display = Stop(options.deadline), Display()
            # `import holdfast` should not import what queries schedulers
            from .job_clock import JobClock

            self.job_clock = JobClock(
                options.path, self.stop, own_deadline=options.deadline is not None, rank=ranks.rank
            )
            said = {} if ranks.alone else facts(options, self.tracked, self.drilled)
        require_alike(ranks, said)
        if not ranks.alone:
            ranks.place = self.position.place
        # a drill wants the stop at exactly this safe point
        most_points = 1 if self.drilled.digests else MOST_POINTS
        self.windows = None if ranks.alone else Windows(ranks, most_points=most_points)

    def _claim(self) -> None:
        """Claim the run when it is this attempt's turn."""
        options = self.options
        with present(self.ranks):
            self.store = options.store(self.ranks)
            mine = self._entry()
            if not options.take_over:
                self.job_clock.await_turn(self.store.root)
            self.mirrors: Mirrors | None = None
            if self.ranks.leads and options.mirroring is not None:
                from . import mirror_start  # only such runs need it

                self.mirrors = mirror_start.claim(options, self.store, mine)
            self.attempt = self.store.claim()
            if mine:
                self.attempt.record("entered", **mine)

    def _entry(self) -> Mapping[str, Any]:
        """Which submission starts this attempt; empty outside a batch job.

        Raises:
            UsageError: the run is another submission's.
        """
        if job() is None or not self.ranks.leads:
            return {}
        from . import submission_guard  # only jobs need it

        mine = submission_guard.entry()
        submission_guard.require_ours(self.store.root, mine, self.options.accept)
        return mine._asdict()


def require_overridable(overrides: Mapping[str, Mapping[str, Any]], tracked: Tracked) -> None:
    """Require that each override names a tracked object with options.

    Raises:
        UsageError: an override names an object that is not tracked, or has no options.
    """
    named = tracked.objects | tracked.inside() if overrides else {}
    for name in overrides:
        if name not in named:
            raise UsageError(f"overrides: nothing is tracked as {name!r}, only {', '.join(named)}")
        if adapter_for(named[name]) is None:
            raise UsageError(
                f"overrides: {name!r} is a {type(named[name]).__qualname__}, without options to set"
            )
        if named[name] in STEERED and "lr" in overrides[name]:
            raise UsageError(
                f"overrides: the trainer sets the lr of {name!r} "
                "before each step; change it in the script"
            )
