"""Requeue: whether a job whose outermost process has stopped is started again. The last act of that process."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import ClusterError, StoreError, Superseded
from ..job import Job
from ..terminal import warn
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


def on_hold(place: Path) -> str:
    """What to say where a command begins, or is to begin, in a place that is on hold."""
    release = f"holdfast release {shlex.quote(str(place))}"
    return f"{place} is on hold: it runs until it stops, and is not started again; {release}"


@dataclass
class Requeue:
    """The end of one job. It is requeued only on the scheduler's own evidence of a preemption or a time limit."""

    job: Job
    heard: Heard
    record: Callable[..., Any]  # journals (event, **facts); durable when it returns
    requeues: int = 0  # how often the journal says `requeued`
    places: Sequence[Path] = ()
    limit: int = MOST_REQUEUES
    successor: Path | None = None
    patience_s: float = PATIENCE_S
    seen: JobStatus | None = field(default=None, init=False)
    why: Cause = field(default="unclear", init=False)
    _recorded: bool = field(default=False, init=False)

    def continue_job(self) -> Continuation:
        """Requeue the job, or leave it alone.

        The evidence is asked for immediately before. If Slurm refuses, `successor` or the job's own script is
        submitted, to begin after this job. A file `hold` in one of the `places` forbids all that, and so do `limit`
        requeues in the journal. While the scheduler is away this tries again, for `patience_s`, and says so once.
        Never raises.
        """
        give_up_s, wait_s = time.monotonic() + self.patience_s, FIRST_WAIT_S
        while True:
            try:
                rule = other.RULES.get(self.job.scheduler)
                return self._try() if rule is None else self._by_its_rule(rule)
            except Superseded as error:
                return Continuation("superseded", "requeued", str(error))
            except Silent as error:
                if time.monotonic() + wait_s > give_up_s:
                    return self._failed(error)
                if wait_s == FIRST_WAIT_S:
                    warn(f"{error}; trying again. {self._to_go_on()}")
            except ClusterError as error:
                return self._failed(error)
            time.sleep(wait_s * DICE.uniform(0.75, 1.25))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _try(self) -> Continuation:
        """Once.

        Raises:
            Silent: the scheduler is away.
            ClusterError: it is not, and says nothing that we understand.
            Superseded: a later attempt owns the run: a requeue would end that one.
        """
        left = self._left_alone()
        if left is None and not self._recorded:  # before the call: the room may be fenced right after it
            self._write("requeued", restart_count=self.job.restart_count)
            self._recorded = True
            left = self._left_alone()  # writing it down may have taken long
        return left or self._requeue()

    def _by_its_rule(self, rule: other.Rule) -> Continuation:
        """The same for another scheduler than Slurm: nobody asks it why the job ends, so that little is certain."""
        what, name = self.heard.what, f"job {self.job.id}"
        if what not in rule.notices:
            return self._left("unclear", f": why {what} came is unclear, so it is not requeued")
        if (left := self._forbidden()) is not None:
            return left
        self.why = "time limit"
        code = other.exit_code(self.job, what)
        if code is None and not rule.requeue:
            return self._left("failed", f": {self.job.scheduler} starts no job again")
        self._write("requeued")
        if code is not None:
            line = f"{name}: exit code {code} makes {self.job.scheduler} start it again"
            return Continuation("by its rule", self.why, line)
        try:
            obeyed([word.format(id=self.job.id) for word in rule.requeue])
        except ClusterError as error:  # also when nobody knows whether it was done
            return self._failed(error)
        return Continuation("requeued", self.why, f"{name}: requeued")

    def _left_alone(self) -> Continuation | None:
        """What is said of a job that is not to be requeued, as the scheduler sees it now; None of one that is."""
        self.seen = slurm.seen(self.job)
        self.why = cause(self._lead(), self.job.restart_count, self.seen)
        if self.why == "requeued":
            self._note("not_requeued", how="by slurm")
            return Continuation("by slurm", self.why, f"job {self.job.id}: Slurm starts it again by itself")
        if self.why == "cancelled":
            return self._left("cancelled", " was cancelled, and is not requeued")
        if self.why == "unclear":
            seen = self.seen
            known = f"state {seen.state}, reason {seen.reason}" if seen else "Slurm does not know the job"
            return self._left("unclear", f": why {self.heard.what} came is unclear ({known}), so it is not requeued")
        return self._forbidden()

    def _forbidden(self) -> Continuation | None:
        """What is said of a job on hold, or one that was requeued too often."""
        held = next((place for place in self.places if (place / HOLD).exists()), None)
        if held is not None:
            release = f"holdfast release {shlex.quote(str(held))} && "
            return self._left("held", f" is not requeued: {held} is on hold", release)
        if self.requeues >= self.limit:
            often = f"it was requeued {self.requeues} times, and {self.limit} are the most"
            return self._left("limit", f" is not requeued: {often}")
        return None

    def _failed(self, error: ClusterError) -> Continuation:
        return self._left("failed", f" could not be requeued: {error}")

    def _left(self, how: How, why: str, first: str = "") -> Continuation:
        """The job is left alone; the line says exactly what the user must type."""
        self._note("not_requeued", how=how)
        return Continuation(how, self.why, f"job {self.job.id}{why}. {self._to_go_on(first)}")

    def _to_go_on(self, first: str = "") -> str:
        """What the user must do: requeue it while Slurm remembers the job, submit its script later."""
        seen, rule = self.seen, other.RULES.get(self.job.scheduler)
        if rule is not None:
            return f"To go on, type: {first}{rule.again.format(id=self.job.id)}"
        if seen is not None and not seen.batch:
            return "To go on, start it again as you did"
        command = shlex.quote(str(self.successor)) if self.successor else seen.command if seen else ""
        options = {"array": self.job.task, "chdir": seen.options.get("chdir") if seen else None}
        words = [f"--{name}={shlex.quote(value)}" for name, value in options.items() if value]
        ways = [f"scontrol requeue {self.job.id}"] * (seen is None or seen.requeue)
        ways += [" ".join(["sbatch", *words, command])] * bool(command)
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
        if (left := self._left_alone()) is not None:  # somebody may have been faster
            return left
        try:
            number = self._submit()
        except ClusterError as error:  # also when nobody knows whether it was done: two would be worse than none
            return self._failed(ClusterError(f"{refusal}; nor could a job be submitted to follow it: {error}"))
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

    def _write(self, event: str, **facts: Any) -> None:
        """Journal it. A full disk is no reason to stop here.

        Raises:
            Superseded: a later attempt owns the run.
        """
        try:
            self.record(
                event, cause=self.why, job=self.job.id, heard=self.heard.what, heard_at=self.heard.at_s, **facts
            )
        except Superseded:
            raise
        except (StoreError, OSError):
            pass

    def _note(self, event: str, **facts: Any) -> None:
        with suppress(Superseded):  # what is noted so calls for nothing any more
            self._write(event, **facts)
