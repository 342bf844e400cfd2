"""Session: the record of the parts of one attempt. It makes them, claims the run, and never
changes.

Only what begins, saves and ends an attempt takes all of it: `opening`, `safe_point` and `finish`.
Each part takes what it needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from .. import settings
from ..errors import UsageError
from ..job import job
from ..rules import Auto, Best, parts
from ..state.snapshot import Arena
from ..stateful.objects import STEERED, adapter_for
from ..stateful.tracked import Tracked
from ..stateful.watch import UnusedValueWatch
from ..terminal import ProgressLine as Display
from ..terminal import answer, set_rank
from .alive import Heartbeat
from .capture import StateCapture
from .deferred_saves import EpochEndSaves, LastBatchPolicy
from .drilled import DrillHooks
from .failures import SaveFailures
from .metrics import BestTracker, MetricsLog
from .options import Options
from .origin import AttemptOrigin
from .position import RunProgress
from .ranks import (
    MOST_POINTS,
    OrderWindows,
    collect_names,
    current_ranks,
    facts_that_must_agree,
    reporting_errors,
    require_equal_arguments,
)
from .report import Reporter
from .saver import Saver
from .schedule import SaveSchedule
from .script_checks import ScriptChecks
from .stop import Lifetime, StopRequest
from .writer import ReadBack

if TYPE_CHECKING:
    from ..mirror.mirrors import Mirrors
    from .schedule import SaveInterval


class Session:
    """The parts of one attempt."""

    def __init__(self, options: Options, tracked: Tracked) -> None:
        self.options, self.path, self.tracked = options, options.path, tracked
        tracked.remember_objects()
        self.watch = UnusedValueWatch(tracked)
        self.ranks = current_ranks()
        set_rank(self.ranks.rank)
        self.origin, self.progress = AttemptOrigin(), RunProgress(options.seed)
        self.position, self.walks = self.progress.position, self.progress.walks
        self.alive = Heartbeat(self.position)
        self._agree_on_facts()
        self._claim_run()
        ranks, origin, progress, drilled = self.ranks, self.origin, self.progress, self.drilled
        self.reporter = reporter = Reporter(self.attempt, self.position, private=options.private)
        self.metrics = MetricsLog(ranks, self.position, reporter)
        self.capture = StateCapture(options, tracked, ranks, origin, progress, self.metrics)
        self.drill = DrillHooks(
            drilled,
            ranks,
            tracked,
            origin,
            progress,
            self.position,
            reporter,
            self.watch.entered_in,
        )
        self.last_batch = LastBatchPolicy(ranks, progress)
        pace: SaveInterval | None = None
        if isinstance(options.every, Auto) and ranks.leads:
            from .schedule import SaveInterval

            pace = SaveInterval(options.every, progress, reporter, self.stop, options.background)
        self.waiting = EpochEndSaves(
            ranks,
            progress,
            reporter,
            getattr(options.every, "steps", None) is not None,
            drilled.digests,
        )
        readback, arena = ReadBack(self.store), Arena()
        failures = SaveFailures(self.store, reporter.warn)
        bests = [rule for rule in parts(options.keep) if isinstance(rule, Best)]
        schedule = SaveSchedule(
            options.every,
            progress,
            self.drill,
            self.last_batch,
            readback,
            failures,
            arena,
            self.waiting,
            BestTracker(bests, ranks, self.store, self.windows),
            pace,
            progress.interval_mark(),
        )
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
            schedule,
            readback,
            failures,
            arena,
            (lambda: None) if self.mirrors is None else self.mirrors.note_commit,
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

    def take_signals(self) -> None:
        """Take signals, and show progress, while the outermost loop of a run without a block
        runs.
        """
        self.stop.__enter__()
        self.display.begin(draws=self.ranks.leads)

    def _answer(self, signal: str) -> None:
        """Tell at once what becomes of a request to stop: called by the signal handler."""
        progress, saved = self.progress, self.saves.saved
        if not self.walks.open:
            answer(f"{signal}: stops at the next safe point")
            return
        left_s = progress.last_step_s - (time.monotonic() - progress.last_point_s)
        # a branch has the steps of its source, which lie safe in the source's checkpoint
        lost = min(self.position.step - (saved.step if saved else 0), progress.steps_here)
        answer(
            f"{signal}: finishing step {self.position.step + 1}"
            + (f" (about {left_s:.0f} s)" if left_s >= 1 else "")
            + ", then saving. Ctrl-C again: stop now and lose "
            + (f"{lost} step{'s' if lost > 1 else ''} and this one" if lost else "this step")
        )

    def _agree_on_facts(self) -> None:
        """Determine the facts on which the attempt depends,
        and compare them with the other ranks.
        """
        ranks, options = self.ranks, self.options
        with ranks.together("options"):
            self.drilled = settings.read_drill_settings(options.path)
            self.stop, self.display = StopRequest(options.deadline), Display()
            # `import holdfast` should not import what queries schedulers
            from .stop import JobClock

            self.job_clock = JobClock(
                options.path, self.stop, own_deadline=options.deadline is not None, rank=ranks.rank
            )
            said = {} if ranks.alone else facts_that_must_agree(options, self.tracked, self.drilled)
        require_equal_arguments(ranks, said)
        collect_names(ranks, self.tracked)
        if not ranks.alone:
            ranks.place = self.position.describe
        # a drill wants the stop at exactly this safe point
        most_points = 1 if self.drilled.digests else MOST_POINTS
        self.windows = None if ranks.alone else OrderWindows(ranks, most_points=most_points)

    def _claim_run(self) -> None:
        """Claim the run when it is this attempt's turn."""
        options = self.options
        with reporting_errors(self.ranks):
            self.store = options.store(self.ranks)
            mine = self._submission_entry()
            if not options.take_over:
                self.job_clock.wait_for_earlier_task(self.store.root)
            self.mirrors: Mirrors | None = None
            if self.ranks.leads and options.mirroring is not None:
                from . import mirror_start  # only such runs need it

                self.mirrors = mirror_start.claim_run_and_places(options, self.store, mine)
            self.attempt = self.store.claim()
            if mine:
                self.attempt.record("entered", **mine)

    def _submission_entry(self) -> Mapping[str, Any]:
        """Which submission starts this attempt; empty outside a batch job.

        Raises:
            UsageError: the run is another submission's.
        """
        if job() is None or not self.ranks.leads:
            return {}
        from ..cluster import submission_guard  # only jobs need it

        mine = submission_guard.current_entry()
        submission_guard.require_same_submission(self.store.root, mine, self.options.accept)
        return mine._asdict()


def require_overridable(overrides: Mapping[str, Mapping[str, Any]], tracked: Tracked) -> None:
    """Require that each override names a tracked object with options.

    Raises:
        UsageError: an override names an object that is not tracked, or has no options.
    """
    named = tracked.objects | tracked.self_restoring_objects() if overrides else {}
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
