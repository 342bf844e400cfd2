"""Requeue: whether a job whose outermost process has stopped is started again. The last act of that process."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import ClusterError, StoreError, Superseded
from ..job import Job
from . import other, sbatch, slurm
from .ask import Silent, obeyed
from .cause import Cause, Heard, cause
from .slurm import JobStatus
from .watch import DICE

HOLD = "hold"  # a file of this name in a run's directory forbids it
MOST_REQUEUES = 1000
PATIENCE_S = 600.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0

How = Literal[
    "requeued", "submitted", "by slurm", "by its rule", "cancelled", "held", "limit", "unclear", "superseded", "failed"
]


class Continuation(NamedTuple):
    """What was done, and the line that says so."""

    how: How
    cause: Cause
    line: str


class Journal(NamedTuple):
    """Where it is written down, before it is done."""

    record: Callable[..., Any]  # (event, **facts); durable when it returns
    requeues: int = 0  # lines `requeued` in it so far


def on_hold(place: Path) -> str:
    """What to say where a command begins, or is to begin, in a place that is on hold."""
    return f"{place} is on hold: it runs until it stops, and is not started again; holdfast release {shlex.quote(str(place))}"


def continue_job(
    job: Job,
    heard: Heard,
    journal: Journal,
    *,
    places: Sequence[Path] = (),
    limit: int = MOST_REQUEUES,
    successor: Path | None = None,
    meanwhile: Callable[[str], Any] | None = None,
    patience_s: float = PATIENCE_S,
) -> Continuation:
    """Requeue the job if the scheduler's own evidence says that it was preempted or ran out of time, and not otherwise.

    The evidence is asked for immediately before. Refused, it submits `successor`, or the job's own script, to begin after
    this job. A file `hold` in one of the `places` forbids it, and so do `limit` requeues in the journal. While the
    scheduler is away it tries again, for `patience_s`; `meanwhile` gets a line at the first failure. Never raises, never
    speaks: the caller says the line.
    """
    turn = _Turn(job, heard, journal, places, limit, successor)
    give_up_s, wait_s = time.monotonic() + patience_s, FIRST_WAIT_S
    while True:
        try:
            return turn.take() if job.scheduler == "slurm" else turn.by_its_rule(other.RULES[job.scheduler])
        except Superseded as error:
            return Continuation("superseded", "requeued", str(error))
        except Silent as error:
            if time.monotonic() + wait_s > give_up_s:
                return turn.failed(error)
            if wait_s == FIRST_WAIT_S and meanwhile is not None:
                meanwhile(f"{error}; trying again. {turn.to_go_on()}")
        except ClusterError as error:
            return turn.failed(error)
        time.sleep(wait_s * DICE.uniform(0.75, 1.25))
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


class _Turn:
    """One job's end."""

    def __init__(
        self, job: Job, heard: Heard, journal: Journal, places: Sequence[Path], limit: int, successor: Path | None
    ) -> None:
        self.job, self.heard, self.journal, self.places = job, heard, journal, places
        self.limit, self.successor = limit, successor
        self.seen: JobStatus | None = None
        self.why: Cause = "unclear"
        self._recorded = False

    def take(self) -> Continuation:
        """One try.

        Raises:
            Silent: the scheduler is away.
            ClusterError: it is not, and says nothing that we understand.
            Superseded: a later attempt owns the run: a requeue would end that one.
        """
        left = self._left_alone()
        if left is None and not self._recorded:  # before the call: the room may be fenced right after it
            self._record("requeued", restart_count=self.job.restart_count)
            self._recorded = True
            left = self._left_alone()  # writing it down may have taken long
        return left or self._requeue()

    def by_its_rule(self, rule: other.Rule) -> Continuation:
        """The same for another scheduler than Slurm: nobody asks it why the job ends, so that little is certain."""
        what, name = self.heard.what, f"job {self.job.id}"
        if what not in rule.notices:
            unclear = f"{name}: why {what} came is unclear, so it is not requeued"
            return self._left("unclear", f"{unclear}. {self.to_go_on()}")
        left = self._forbidden()
        if left is not None:
            return left
        self.why = "time limit"
        code = other.exit_code(self.job, what)
        if code is None and not rule.requeue:
            return self._left("failed", f"{name}: {self.job.scheduler} starts no job again. {self.to_go_on()}")
        self._record("requeued")
        if code is not None:
            line = f"{name}: exit code {code} makes {self.job.scheduler} start it again"
            return Continuation("by its rule", self.why, line)
        try:
            obeyed([word.format(id=self.job.id) for word in rule.requeue])
        except ClusterError as error:  # also when nobody knows whether it was done
            return self.failed(error)
        return Continuation("requeued", self.why, f"{name}: requeued")

    def _left_alone(self) -> Continuation | None:
        """What is said of a job that is not to be carried on, as the scheduler sees it now; None of one that is."""
        self.seen = slurm.seen(self.job)
        self.why = cause(self._lead(), self.job.restart_count, self.seen)
        name = f"job {self.job.id}"
        if self.why == "requeued":
            return self._left("by slurm", f"{name}: Slurm starts it again by itself")
        if self.why == "cancelled":
            return self._left("cancelled", f"{name} was cancelled, and is not requeued. {self.to_go_on()}")
        if self.why == "unclear":
            unclear = f"{name}: why {self.heard.what} came is unclear ({self._evidence()}), so it is not requeued"
            return self._left("unclear", f"{unclear}. {self.to_go_on()}")
        return self._forbidden()

    def _forbidden(self) -> Continuation | None:
        """What is said of a job on hold, or one that was requeued too often."""
        name = f"job {self.job.id} is not requeued"
        held = next((place for place in self.places if (place / HOLD).exists()), None)
        if held is not None:
            release = f"holdfast release {shlex.quote(str(held))} && "
            return self._left("held", f"{name}: {held} is on hold. {self.to_go_on(release)}")
        if self.journal.requeues >= self.limit:
            often = f"it was requeued {self.journal.requeues} times, and {self.limit} are the most"
            return self._left("limit", f"{name}: {often}. {self.to_go_on()}")
        return None

    def failed(self, error: ClusterError) -> Continuation:
        """Nothing works: exactly what the user must type."""
        return self._left("failed", f"job {self.job.id} could not be requeued: {error}. {self.to_go_on()}")

    def to_go_on(self, first: str = "") -> str:
        """What the user must do: requeue it while Slurm remembers the job, submit its script later."""
        seen, rule = self.seen, other.RULES.get(self.job.scheduler)
        if rule is not None:
            return f"To go on, type: {first}{rule.again.format(id=self.job.id)}"
        if seen is not None and not seen.batch:
            return "To go on, start it again as you did"
        command = shlex.quote(str(self.successor)) if self.successor else seen.command if seen else ""
        options = {"array": self.job.task, "chdir": seen.options.get("chdir") if seen else None}
        words = [f"--{name}={shlex.quote(value)}" for name, value in options.items() if value]
        again = f"scontrol requeue {self.job.id}" if seen is None or seen.requeue else ""
        ways = [*filter(None, [again]), *([" ".join(["sbatch", *words, command])] if command else [])]
        either = " || ".join(ways) or "sbatch, with its script"
        return f"To go on, type: {first}{f'{{ {either}; }}' if first and len(ways) > 1 else either}"

    def _requeue(self) -> Continuation:
        name = f"job {self.job.id}"
        try:
            slurm.requeue(self.job)
            return Continuation("requeued", self.why, f"{name}: {self.why}; requeued")
        except Silent:
            raise
        except ClusterError as error:
            refusal = error
        left = self._left_alone()  # somebody may have been faster
        if left is not None:
            return left
        try:
            number = self._submit()
        except ClusterError as error:  # also when nobody knows whether it was done: two would be worse than none
            return self.failed(ClusterError(f"{refusal}; nor could a job be submitted to follow it: {error}"))
        self._note("submitted", successor=number)
        return Continuation("submitted", self.why, f"{name}: {self.why}; {refusal}. Job {number} goes on after it")

    def _submit(self) -> str:
        """The job that begins when this one has ended."""
        if self.successor is not None:
            return slurm.submit([*self._dependency(), str(self.successor)])
        seen, script = self.seen, self._script
        if seen is None or not (script or seen.command):
            raise ClusterError("there is no batch script")
        if " " in seen.command:
            raise ClusterError(f"the words of `sbatch {seen.command}` cannot be told apart")
        said = {option.name for option in sbatch.directives(script).options}
        options = [f"--{name}={value}" for name, value in seen.options.items() if name not in said]
        return slurm.submit([*self._dependency(), *options, *([] if script else [seen.command])], script)

    @cached_property
    def _script(self) -> str:
        """The script as it was submitted; its file may have changed since. Empty when Slurm does not give it."""
        try:
            return slurm.batch_script(self.job)
        except Silent:
            raise
        except ClusterError:
            return ""

    def _dependency(self) -> list[str]:
        array = [f"--array={self.job.task}"] if self.job.task else []
        return [f"--dependency=afterany:{self.job.id}", *array]

    def _lead(self) -> Heard:
        """What we heard; of a notice without a known lead, what the job's script says of it."""
        heard = self.heard
        if heard.lead_s is not None or heard.what == "deadline" or self.seen is None or self.seen.state != "RUNNING":
            return heard
        signal = sbatch.signal(sbatch.directives(self._script).options)
        lead_s = float(signal.lead_s) if signal is not None and heard.what == f"SIG{signal.name}" else None
        return heard._replace(lead_s=lead_s)

    def _evidence(self) -> str:
        return f"state {self.seen.state}, reason {self.seen.reason}" if self.seen else "Slurm does not know the job"

    def _left(self, how: How, line: str) -> Continuation:
        self._note("not_requeued", how=how)
        return Continuation(how, self.why, line)

    def _record(self, event: str, **facts: Any) -> None:
        """Journal it. A full disk is no reason to stop here.

        Raises:
            Superseded: a later attempt owns the run.
        """
        try:
            self.journal.record(
                event, cause=self.why, job=self.job.id, heard=self.heard.what, heard_at=self.heard.at_s, **facts
            )
        except Superseded:
            raise
        except (StoreError, OSError):
            return

    def _note(self, event: str, **facts: Any) -> None:
        with suppress(Superseded):  # what is noted so calls for nothing any more
            self._record(event, **facts)
