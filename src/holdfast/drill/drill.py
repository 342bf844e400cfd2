"""The drill itself: two undisturbed runs, an interrupted one, a verdict."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec

from .. import disk, journal
from ..errors import ChildError, UsageError
from ..journal import Log
from ..run import settings
from . import cause, compare, evidence, kill, report, tail
from .aim import Aim, Options, move
from .evidence import Trace
from .kill import Ended, Fired, Follow, Start
from .plan import SIGNALS, Kill, Pace, pace, plan
from .report import Attempt, Divergence, Report
from .safepoint import Place

Say = Callable[[str], None]
Watch = Callable[[int, int | None], None]  # told the step, and the last one where that is known

MOST_IDLE = 3  # attempts in a row that came no further, without having been interrupted


class Drill:
    """One drill of one command."""

    def __init__(self, command: Sequence[str], options: Options, say: Say, watch: Watch) -> None:
        self.command, self.options, self.say, self._watch = list(command), options, say, watch
        self._exempt = (*compare.TIMINGS, *options.exempt)
        self._idle: frozenset[str] = frozenset()
        self._notes: list[str] = []

    def run(self) -> Report:
        """The findings.

        Raises:
            UsageError: an option, or the command, does not lend itself to a drill.
            ChildError: the command failed by itself.
        """
        began = time.monotonic()
        with kill.ended_by_signals(), _workplace(self.options.keep) as place:
            found = self._run(place)
        found.total_s = time.monotonic() - began
        found.kept = None if self.options.keep is None else str(self.options.keep)
        return found

    def _run(self, place: Path) -> Report:
        first, took_s = self._undisturbed(place / "first", 1)
        self._undisturbed(place / "second", 2)
        reference, second = evidence.trace(place / "first"), evidence.trace(place / "second")
        self._second = second
        self._idle = compare.idle(reference, second)
        found = self._begin(reference, first, took_s)
        self._judge(found, reference, second, place, "second")
        if found.verdict != report.IDENTICAL:
            found.verdict = report.NOT_DETERMINISTIC
            return found
        if self._idle:
            names = ", ".join(sorted(self._idle))
            self._notes.append(f"nobody seeds or draws from the generators of {names}: compared within each run")
        found.saves = len(first.saves)
        planned = self._plan(first)
        if not planned:
            found.verdict = report.NOT_PROVEN
            return found
        self.say(f"killed run: {len(planned)} kills planned over {first.last} steps")
        found.attempts = self._interrupted(place / "killed", first, planned)
        found.kills_proven = sum(attempt.proven for attempt in found.attempts)
        interrupted = evidence.trace(place / "killed")
        found.states_compared, found.metric_lines = len(interrupted.states), len(interrupted.metrics)
        self._judge(found, reference, interrupted, place, "killed")
        if found.verdict == report.IDENTICAL and found.kills_proven < self.options.kills:
            found.verdict = report.NOT_PROVEN
        return found

    def _begin(self, reference: Trace, first: Pace, took_s: float) -> Report:
        return Report(
            verdict=report.NOT_PROVEN,
            command=self.command,
            seed=self.options.seed,
            kills_asked=self.options.kills,
            steps=first.last,
            metrics={name: value for line in reference.metrics for name, value in line.values.items()},
            exempt=compare.exempted(reference.metrics, self._exempt),
            notes=self._notes,
            reference_s=took_s,
        )

    # -- the two undisturbed runs ----------------------------------------------------------------------------------

    def _undisturbed(self, root: Path, number: int) -> tuple[Pace, float]:
        self.say(f"undisturbed run {number} of 2: {' '.join(self.command)}")
        ended = kill.run(self._start(root, float("inf"), 0), self._watched(lambda _: None, None))
        log = _last_log(root)
        if move(ended, log) != "finished":
            raise ChildError(f"undisturbed run {number}: {_failure(ended, log)}")
        if log is None:
            raise UsageError(
                f"the command ended well, but without a Run: it left nothing in {settings.RUN_DIR}. A drill needs a "
                "script with `with Run(...) as run:`"
            )
        learnt = pace(log.events, ended.took_s)
        self.say(
            f"undisturbed run {number}: {learnt.last} steps in {ended.took_s:.1f} s, {len(learnt.saves)} saves on the way"
        )
        return learnt, ended.took_s

    def _start(self, root: Path, timeout_s: float, after: int) -> Start:
        drilled = settings.Drilled(self.options.steps, self.options.save_every_steps, digests=True)
        wishes = msgspec.json.encode(drilled).decode()
        environment = {settings.RUN_DIR: str(root), settings.DRILL: wishes}
        return Start(self.command, environment, root, timeout_s, after)

    def _watched(self, aim: Callable[[Follow], Kill | None], total: int | None) -> Callable[[Follow], Kill | None]:
        def look(view: Follow) -> Kill | None:
            self._watch(view.step, total)
            return aim(view)

        return look

    # -- the interrupted one -----------------------------------------------------------------------------------------

    def _plan(self, first: Pace) -> list[Kill]:
        options = self.options
        planned = plan(first, options.kills, options.signals, options.seed, damage=options.damage)
        if not planned:
            self._notes.append(
                f"of {first.last} steps, {', '.join(map(str, first.saves)) or 'none before the last'} saved: nothing to come "
                "back to and go on from. Save more often, or force it with --save-every K"
            )
        return planned

    def _interrupted(self, root: Path, first: Pace, planned: list[Kill]) -> list[Attempt]:
        """Start the command until it has finished, killing it as planned."""
        attempts: list[Attempt] = []
        aim = Aim(planned, first, self.options)
        for _ in range(3 * self.options.kills + 10):
            after = attempts[-1].attempt if attempts else 0
            aim.begin(attempts)
            ended = kill.run(
                self._start(root, first.timeout_s, after),
                self._watched(aim, first.last),
                partial(self._gone_on, root, aim, attempts, after),
            )
            log = _last_log(root, after)
            what = move(ended, log)
            if what == "failed" or log is None:
                raise ChildError(f"attempt {after + 1} of the killed run: {_failure(ended, log)}")
            made = _attempts(_logs(root, after), ended.strikes)
            made[-1].exit, made[-1].took_s = ended.exit, ended.took_s
            attempts += made
            _prove(attempts)
            if what == "finished":
                self._tell(made)
                self._missed(aim)
                return attempts
            attempts[-1].damage = self._damage(root, aim, ended)
            self._tell(made)
            _require_progress(attempts)
        raise ChildError(
            f"the command did not finish in {len(attempts)} attempts; the last reached step {attempts[-1].reached}"
        )

    def _gone_on(
        self, root: Path, aim: Aim, before: Sequence[Attempt], after: int, strikes: Mapping[int, Fired]
    ) -> None:
        """The launcher has begun another attempt by itself: that is the next to be aimed at."""
        aim.fired()
        attempts = [*before, *_attempts(_logs(root, after), strikes)]
        _prove(attempts)
        aim.begin(attempts[: 1 + max(place for place, each in enumerate(attempts) if each.signal)])

    def _damage(self, root: Path, aim: Aim, ended: Ended) -> str | None:
        if ended.fired is not None:
            aim.fired()
        if not aim.wounds or ended.fired is None:
            return None
        wound = kill.damage(root, aim.wounds[0], self.options.seed)
        if wound is None:
            return None  # there will be an older checkpoint after a later kill
        aim.wounds.pop(0)
        return f"{wound.checkpoint}: {wound.what}"

    def _missed(self, aim: Aim) -> None:
        for kind in aim.wounds:
            self._notes.append(f"no {kind} was planted: there was never an older whole checkpoint to fall back to")

    def _tell(self, made: Sequence[Attempt]) -> None:
        for attempt in made:
            self._tell_of(attempt)

    def _tell_of(self, attempt: Attempt) -> None:
        came = f"resumed at step {attempt.restored_step}" if attempt.restored else "started fresh"
        how = f"{attempt.signal} at step {attempt.reached}" if attempt.signal else attempt.stop or "ended"
        saving = f" while saving {attempt.in_save}" if attempt.in_save else ""
        aside = f"; set aside {', '.join(attempt.quarantined)}" if attempt.quarantined else ""
        hurt = f"; then {attempt.damage}" if attempt.damage else ""
        self.say(f"attempt {attempt.attempt}: {came}{aside}, {how}{saving}{hurt}")

    # -- the verdict ---------------------------------------------------------------------------------------------------

    def _judge(self, found: Report, reference: Trace, other: Trace, place: Path, name: str) -> None:
        metrics = compare.metric_differences(reference.metrics, other.metrics, self._exempt)
        found.final_differences = evidence.final_differences(place / "first", place / name, self._idle)
        found.metric_differences = [str(each) for each in metrics]
        parted = compare.parting(reference, other, self._idle)
        unseen = _unseen_damage(found.attempts)
        if parted is None and not metrics and not found.final_differences and not unseen:
            found.verdict = report.IDENTICAL
            return
        found.verdict = report.DIFFERENT
        if parted is not None or metrics or found.final_differences:
            found.divergence = _divergence((reference, self._second, other), parted, metrics)
        if unseen:
            self._notes.append(f"damage went unseen, and was restored: {unseen}")


def _attempts(logs: Sequence[Log], strikes: Mapping[int, Fired]) -> list[Attempt]:
    """The attempts of one start: a launcher may begin another by itself when it has lost a rank."""
    found = [_attempt(log) for log in logs]
    for attempt in found:
        if attempt.attempt in strikes:
            attempt.signal, attempt.in_save = strikes[attempt.attempt]
    return found


def _attempt(log: Log) -> Attempt:
    restored = next((event for event in log.events if event["event"] == "restored"), {})
    last = log.events[-1] if log.closed else {}
    steps = [int(event["step"]) for event in log.events if event["event"] in ("restored", "digests", "saved")]
    return Attempt(
        attempt=log.attempt,
        restored=restored.get("checkpoint"),
        restored_step=int(restored.get("step", 0)),
        reached=max(steps, default=0),
        signal=None,
        in_save=None,
        stop=last.get("reason") or last.get("event"),
        exit=None,
        took_s=0.0,
        quarantined=[str(event["name"]) for event in log.events if event["event"] == "quarantined"],
    )


def _prove(attempts: list[Attempt]) -> None:
    """A kill counts once the next attempt came back to a step above 0 and went beyond it."""
    for struck, after in pairwise(attempts):
        if struck.signal is not None:
            struck.proven = 0 < after.restored_step < after.reached


def _require_progress(attempts: Sequence[Attempt]) -> None:
    idle = [each.signal is None and each.reached <= each.restored_step for each in attempts[-MOST_IDLE:]]
    if len(idle) == MOST_IDLE and all(idle):
        last = attempts[-1]
        raise ChildError(
            f"{MOST_IDLE} attempts in a row came no further than step {last.reached}: {last.stop or last.exit}"
        )


def _unseen_damage(attempts: Sequence[Attempt]) -> str | None:
    """Damage that the next attempt did not set aside."""
    for before, after in pairwise(attempts):
        if before.damage and before.damage.partition(":")[0] not in after.quarantined:
            return before.damage
    return None


def _divergence(
    traces: tuple[Trace, Trace, Trace], parted: compare.Parting | None, metrics: Sequence[compare.MetricDifference]
) -> Divergence:
    reference, second, other = traces
    if metrics and (parted is None or metrics[0].place.order < parted.place.order):
        place, attempt, what = metrics[0].place, _logged_by(other, metrics[0].place), metrics[0].what
    elif parted is not None:
        place, attempt, what = parted.place, parted.attempt, parted.what
    else:
        place, attempt, what = reference.states[-1].place, max(other.restored, default=0), "the last state differs"
    facts = cause.gather(reference, parted, metrics, second, other, (place, attempt))
    reason = cause.usual(facts)
    resumed = other.restored.get(attempt)
    return Divergence(
        step=place.step,
        phase=place.phase,
        attempt=attempt,
        resumed_from=resumed.step if resumed else None,
        leaf=facts.leaves[0] if facts.leaves and not facts.metrics_first else None,
        leaves=list(facts.leaves),
        metric=facts.metrics[0] if facts.metrics else None,
        what=what,
        cause=reason.name,
        advice=reason.text,
    )


def _logged_by(trace: Trace, place: Place) -> int:
    """The attempt whose line at `place` survived: the last that began before it."""
    return max((attempt for attempt, restored in trace.restored.items() if restored.order < place.order), default=0)


def _logs(root: Path, after: int = 0) -> list[Log]:
    return [log for log in journal.logs(root) if log.attempt > after]


def _last_log(root: Path, after: int = 0) -> Log | None:
    return next(reversed(_logs(root, after)), None)


def _failure(ended: Ended, log: Log | None) -> str:
    last = log.last if log is not None and log.closed else {}
    if last.get("event") == "stop":
        how = f"stopped by itself ({last.get('reason')}); give it more time, or drill fewer steps with --steps"
    else:
        how = f"killed by signal {-ended.exit}" if ended.exit < 0 else f"failed with exit {ended.exit}"
    why = f", {last['error']}" if last.get("event") == "failed" and "error" in last else ""
    return "\n".join([f"the command {how}{why}; the end of its output:", *tail.shown(ended.tail)])


@contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    """Where the runs live: a directory that goes with the drill, unless the user wants to keep it."""
    if keep is None:
        place = Path(tempfile.gettempdir()) / f"holdfast-drill-{uuid.uuid4().hex}"
        before = os.umask(0o077)  # what is trained is nobody else's business
        try:
            disk.make_dir(place)
        finally:
            os.umask(before)
        try:
            yield place
        finally:
            disk.remove_tree(place)
        return
    disk.make_dirs(keep.absolute())
    if any(keep.iterdir()):
        raise UsageError(f"--keep {keep}: not empty; name a directory that is, or that does not exist yet")
    yield keep.absolute()  # the command may change its directory


def drill(command: Sequence[str], options: Options, say: Say, watch: Watch = lambda *_: None) -> Report:
    """Drill `command`, telling `say` line by line how it goes, and `watch` many times a second how far it is.

    Raises:
        UsageError: an option, or the command, does not lend itself to a drill.
        ChildError: the command failed by itself.
    """
    if not command:
        raise UsageError("no command to drill: holdfast drill -- python train.py ...")
    unknown = [name for name in options.signals if name not in SIGNALS]
    if unknown or not options.signals or options.kills < 1:
        raise UsageError(f"a drill takes at least one kill, by signals among {', '.join(SIGNALS)}; not {unknown}")
    return Drill(command, options, say, watch).run()
