"""Requeue: decides whether a stopped job is started again. The job leader calls this last."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from .. import scan
from ..batch import sbatch
from ..errors import ClusterError, StoreError, Superseded
from ..job import Job
from ..settings import MOST_REQUEUES
from ..terminal import warn
from . import other, slurm
from .ask import SchedulerSilent, run_successfully
from .bad_nodes import Exclusion
from .cause import Cause, StopNotice, find_cause
from .hold import HOLD
from .slurm import JobStatus
from .watch import DICE

PATIENCE_S = 600.0
_BETWEEN_S = (0.2, 0.5, 1.0)  # the job is between its end and the queue
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0

How = Literal[
    "requeued",
    "submitted",
    "by slurm",
    "by its rule",
    "cancelled",
    "held",
    "limit",
    "unclear",
    "superseded",
    "failed",
]


class Continuation(NamedTuple):
    """What was done, and the message that reports it."""

    how: How
    cause: Cause
    line: str


class Requeue(msgspec.Struct, dict=True):
    """Continues one job after its end. Under Slurm, requeues it only on evidence, or to leave a bad
    node.

    The evidence is a reported preemption or time limit.
    """

    job: Job
    heard: StopNotice
    record: Callable[..., Any]  # writes (event, **facts) to the journal; durable when it returns
    requeues: int = 0  # number of `requeued` events in the journal
    places: Sequence[Path] = ()
    limit: int = MOST_REQUEUES
    successor: Path | None = None
    exclusion: Exclusion | None = None  # nodes to exclude for the next start
    patience_s: float = PATIENCE_S
    status: JobStatus | None = None  # results, set while the job is continued
    cause: Cause = "unclear"
    _recorded: bool = False

    def continue_job(self) -> Continuation:
        """Requeue the job, or explain why not. Never raises.

        Asks Slurm for evidence right before requeueing; of another scheduler, `other.RULES` decides
        by the notice. If Slurm refuses, submits `successor` or the job's own script, to begin after
        this job. Does nothing if one of `places` has a file `hold`, or if the journal contains
        `limit` requeues. If the scheduler does not answer, retries for `patience_s` and warns once.
        """
        give_up_s, wait_s = time.monotonic() + self.patience_s, FIRST_WAIT_S
        while True:
            try:
                rule = other.RULES.get(self.job.scheduler)
                return self._try_once() if rule is None else self._continue_by_rule(rule)
            except Superseded as error:
                return Continuation("superseded", "requeued", str(error))
            except SchedulerSilent as error:
                if time.monotonic() + wait_s > give_up_s:
                    return self._failure_result(error)
                if wait_s == FIRST_WAIT_S:
                    warn(f"{error}; trying again. {self._advise_user()}")
            except ClusterError as error:
                return self._failure_result(error)
            time.sleep(wait_s * DICE.uniform(0.75, 1.25))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _try_once(self) -> Continuation:
        """Make one try of `continue_job`.

        Raises:
            Silent: the scheduler does not answer.
            ClusterError: the scheduler answered, but with an error or unknown text.
            Superseded: a later attempt owns the run; a requeue would end that attempt.
        """
        left = self._slurm_refusal()
        # record first: once requeued, the next attempt may fence our directory
        if left is None and not self._recorded:
            self._write("requeued", restart_count=self.job.restart_count)
            self._recorded = True
            if self.exclusion is not None:
                self._write("excluded", nodes=self.exclusion.until_s)
            left = self._slurm_refusal()  # recording may have been slow: check again
        return left or self._requeue()

    def _continue_by_rule(self, rule: other.RestartRule) -> Continuation:
        """Continue a job of another scheduler than Slurm.

        Such a scheduler is not asked for the cause; only the notice counts.
        """
        what, name = self.heard.what, f"job {self.job.id}"
        if what not in rule.notices:
            return self._refuse("unclear", f": why {what} came is unclear, so it is not requeued")
        if (left := self._hold_or_limit()) is not None:
            return left
        self.cause = "time limit"
        code = other.exit_code(self.job, what)
        if code is None and not rule.requeue:
            return self._refuse("failed", f": {self.job.scheduler} starts no job again")
        self._write("requeued")
        if code is not None:
            line = f"{name}: exit code {code} makes {self.job.scheduler} start it again"
            return Continuation("by its rule", self.cause, line)
        try:
            run_successfully([word.format(id=self.job.id) for word in rule.requeue])
        except ClusterError as error:  # also when the outcome of the command is unknown
            return self._failure_result(error)
        return Continuation("requeued", self.cause, f"{name}: requeued")

    def _slurm_refusal(self) -> Continuation | None:
        """Return the outcome if Slurm's present state forbids a requeue;
        None if the job may be requeued.
        """
        self.status = slurm.job_status(self.job)
        self.cause = find_cause(self._notice_with_lead_time(), self.job.restart_count, self.status)
        if self.cause == "requeued":
            self._note("not_requeued", how="by slurm")
            return Continuation(
                "by slurm", self.cause, f"job {self.job.id}: Slurm starts it again by itself"
            )
        if self.cause == "cancelled":
            return self._refuse("cancelled", " was cancelled, and is not requeued")
        if self.cause == "unclear":
            seen = self.status
            known = (
                f"state {seen.state}, reason {seen.reason}"
                if seen
                else "Slurm does not know the job"
            )
            return self._refuse(
                "unclear",
                f": why {self.heard.what} came is unclear ({known}), so it is not requeued",
            )
        return self._hold_or_limit()

    def _hold_or_limit(self) -> Continuation | None:
        """Return the outcome if the run is on hold or was requeued too often; else None."""
        held = next((place for place in self.places if scan.exists(place / HOLD)), None)
        if held is not None:
            release = f"holdfast release {shlex.quote(str(held))} && "
            return self._refuse("held", f" is not requeued: {held} is on hold", release)
        if self.requeues >= self.limit:
            often = f"it was requeued {self.requeues} times, and {self.limit} are the most"
            return self._refuse("limit", f" is not requeued: {often}")
        return None

    def _failure_result(self, error: ClusterError) -> Continuation:
        return self._refuse("failed", f" could not be requeued: {error}")

    def _refuse(self, how: How, why: str, first: str = "") -> Continuation:
        """Record that the job is not requeued; the message holds the exact command to type."""
        self._note("not_requeued", how=how)
        return Continuation(how, self.cause, f"job {self.job.id}{why}. {self._advise_user(first)}")

    def _advise_user(self, first: str = "") -> str:
        """Return what the user must do: continue the submission,
        or requeue the job while Slurm remembers it.
        """
        seen, rule = self.status, other.RULES.get(self.job.scheduler)
        if rule is not None:
            return f"To go on, type: {first}{rule.again.format(id=self.job.id)}"
        if seen is not None and not seen.batch:
            return "To go on, start it again as you did"
        if self.successor is not None:
            return (
                f"To go on, type: {first}holdfast submit --continue "
                f"{shlex.quote(str(self.successor.parent))}"
            )
        command = seen.command if seen else ""
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
            return Continuation(
                "requeued", self.cause, f"{name}: {self.cause}; requeued{self._exclude_bad_nodes()}"
            )
        except SchedulerSilent:
            raise
        except ClusterError as error:
            refusal = error
        if (left := self._slurm_refusal()) is not None:  # another process may have requeued it
            return left
        try:
            number = self._submit_successor()
        # also if it is unknown whether a job was submitted: two are worse than none
        except ClusterError as error:
            return self._failure_result(
                ClusterError(f"{refusal}; nor could a job be submitted to follow it: {error}")
            )
        self._note("submitted", successor=number, nodes=self.exclusion and self.exclusion.until_s)
        return Continuation(
            "submitted",
            self.cause,
            f"{name}: {self.cause}; {refusal}. Job {number} goes on after it",
        )

    def _submit_successor(self) -> str:
        """Submit a job that starts when this one has ended; return its number."""
        if self.successor is not None:
            return slurm.submit([*self._dependency(), str(self.successor)])
        seen, script = self.status, self._submitted_script
        if seen is None or not (script or seen.command):
            raise ClusterError("there is no batch script")
        if " " in seen.command:
            raise ClusterError(f"the words of `sbatch {seen.command}` cannot be told apart")
        said = {option.name for option in sbatch.parse_directives(script).options}
        options = [f"--{name}={value}" for name, value in seen.options.items() if name not in said]
        return slurm.submit(
            [*self._dependency(), *options, *([] if script else [seen.command])], script
        )

    @cached_property
    def _submitted_script(self) -> str:
        """The script as it was submitted; its file may have changed since.
        Empty if Slurm does not return it.
        """
        try:
            return slurm.batch_script(self.job)
        except SchedulerSilent:
            raise
        except ClusterError:
            return ""

    def _dependency(self) -> list[str]:
        array = [f"--array={self.job.task}"] if self.job.task else []
        names = self.exclusion.names if self.exclusion is not None else ()
        return [
            f"--dependency=afterany:{self.job.id}",
            *array,
            *[f"--exclude={','.join(names)}"] * bool(names),
        ]

    def _exclude_bad_nodes(self) -> str:
        """Exclude bad nodes for the job, and return the sentence about it. Slurm allows that once
        the job is in the queue again.
        """
        if self.exclusion is None or not (self.exclusion.until_s or self.exclusion.changed):
            return ""
        nodes = ", ".join(self.exclusion.until_s)
        for wait_s in (*_BETWEEN_S, 0.0) if self.exclusion.changed else ():
            try:
                slurm.exclude(self.job, self.exclusion.names)
                break
            except ClusterError as error:
                if not wait_s or not isinstance(error, SchedulerSilent):
                    self._note("not_excluded", why=str(error))
                    return f", but its ExcNodeList stays as it was: {error}"
            time.sleep(wait_s)
        return f" without {nodes}, where starts died by the node's fault" if nodes else ""

    def _notice_with_lead_time(self) -> StopNotice:
        """Return the notice with its lead time; if that is unknown,
        as set by `--signal` in the job's script.
        """
        heard = self.heard
        if (
            heard.lead_s is not None
            or heard.what == "deadline"
            or self.status is None
            or self.status.state != "RUNNING"
        ):
            return heard
        signal = sbatch.requested_signal(sbatch.parse_directives(self._submitted_script).options)
        lead_s = (
            float(signal.lead_s)
            if signal is not None and heard.what == f"SIG{signal.name}"
            else None
        )
        return heard._replace(lead_s=lead_s)

    def _write(self, event: str, **facts: Any) -> None:
        """Write it to the journal. Ignore storage errors: they must not prevent the requeue.

        Raises:
            Superseded: a later attempt owns the run.
        """
        try:
            self.record(
                event,
                cause=self.cause,
                job=self.job.id,
                heard=self.heard.what,
                heard_at=self.heard.at_s,
                **facts,
            )
        except Superseded:
            raise
        except (StoreError, OSError):
            pass

    def _note(self, event: str, **facts: Any) -> None:
        with suppress(Superseded):  # a superseded attempt need not record this
            self._write(event, **facts)
