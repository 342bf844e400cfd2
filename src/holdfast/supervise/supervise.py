"""Supervise: restarts the command until it is done, told to stop, or has finally failed."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .. import scan, settings
from ..apps.command import RUN_ME_AGAIN
from ..apps.file import AppFile
from ..apps.program import Program, ProgramExit
from ..apps.take import file_states
from ..cluster import bad_nodes, hold, job_leader
from ..cluster.cause import BAD_NODE
from ..cluster.notices import Notices, cloud
from ..errors import ChildError
from ..job import Job, job
from ..provenance import redact
from ..store.checkpoint import Checkpoint
from ..terminal import say
from . import judge
from .diagnosis import FailureDiagnosis
from .job_end import JobEnding
from .judge import CommandAttempt, NextStep
from .keep import LEFT, LEFT_WORD, ProgramStore, begin_of_unended_start
from .last_line import format_last_line, format_stop_message
from .limits import PATIENCE_S, TimeLimits
from .output import open_closed_descriptors
from .place import (
    BEAT_S,
    SupervisorDirectory,
    command_label,
    directory_name_for,
    enter_directory,
    working_directory,
)
from .signals import SignalInbox
from .standby import Standby, require_script
from .start import LISTENS_S, PERHAPS_S, ROUND_S, SUPERSEDED, CommandStart
from .watching import HANGS, HangOptions, HangWatch
from .witness import RunJournalReader, RunOutcome

SHOWN_LINES = 20
TOGETHER_S = 1.0  # a scheduler signals the processes of a job one after another: ours may come next
ENDING = "what ends the job"
# reasons to stop without a signal after which the job is continued
# -> the notice that each counts as
CARRIED = {
    "deadline": "deadline",
    judge.LATE: "deadline",
    ENDING: "SIGTERM",
    BAD_NODE: BAD_NODE,
}
# Only torchrun reads these: how long its workers may save (our patience decides), and that
# restarted workers get a rendezvous of their own. Without the latter, gloo finds the ranks' old
# addresses. (torch 2.13, measured)
TORCHRUN = {
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(int(PATIENCE_S)),
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
MEASURED_S = 30.0  # between two looks at the duration of the run's saves
LATE_SHARE = 0.02  # share of the time left at its start by which a program may stop too early


@dataclass(frozen=True)
class SupervisorOptions:
    directory: Path | None = None
    keeps: bool = False  # the program's checkpoints go into our store
    name: str | None = None
    retries: int = 0
    max_no_progress: int = 10
    max_requeues: int = settings.MOST_REQUEUES
    grace_s: float | None = None
    lead_s: float | None = None
    requeue: bool = True
    chain: bool = False  # another task of the array continues the work
    spot: str | None = None  # the cloud that may take this machine back
    hangs: HangOptions = HANGS
    standby: bool = False  # the next start's imports are done in advance
    # those of these options that the user gave, for the line to type next
    typed: Sequence[str] = ()


class SupervisionOutcome(NamedTuple):
    """The result of supervising a command."""

    exit_code: int
    attempts: int
    end: str  # "end", "stop"
    reason: str
    carried: str | None  # how the job was continued, if it had to be
    directory: Path


def supervise(
    command: Sequence[str], program: Callable[[Path], Program], options: SupervisorOptions
) -> SupervisionOutcome:
    """Run `command` until it is done or told to stop; `program` gets the supervisor's directory.

    Raises:
        ChildError: it failed or made no progress; the message holds its last lines of output.
        UsageError: the command does not exist, or another supervisor is in the directory.
        StoreError: its checkpoints cannot be kept, or none of them is usable.
    """
    here = job()
    if options.standby:
        require_script(command, keeps=options.keeps)
    words = {"command": redact(command), "options": redact(options.typed)}
    begin = {
        **words,
        "cwd": str(working_directory()),
        "job": here._asdict() if here else None,
        "node": bad_nodes.node_of_job(here) or None,
        "hears": bad_nodes.receives_slurm_signals(here) or None,
    }
    open_closed_descriptors()
    with SignalInbox() as signals:
        name = options.name or directory_name_for(command)
        chosen = (
            Path("runs", name) if options.keeps and options.directory is None else options.directory
        )
        place = enter_directory(chosen, name, Path(".holdfast"), begin, signals.stop_reasons)
        return _Supervisor(command, program(place.path), options, signals, place, here).run()


@dataclass
class _Supervisor:
    command: Sequence[str]
    program: Program
    options: SupervisorOptions
    signals: SignalInbox
    place: SupervisorDirectory
    job: Job | None
    attempts: list[CommandAttempt] = field(default_factory=list)
    kept: ProgramStore | None = None
    tail: str = ""
    elsewhere: str = ""  # the part of the tail that the user does not see above our own messages
    measured_s: float = 0.0
    notices: Notices | None = None
    standby: Standby | None = None
    witness: RunJournalReader = field(init=False)
    hangs: HangWatch = field(init=False)
    diagnosis: FailureDiagnosis = field(default_factory=FailureDiagnosis)
    job_end: JobEnding = field(init=False)
    time: TimeLimits = field(init=False)
    environment: dict[str, str] = field(init=False)

    def run(self) -> SupervisionOutcome:
        with ExitStack() as around:
            around.callback(self._close_store)
            around.callback(self.diagnosis.close)
            try:
                self.witness = RunJournalReader(self.place.path)
                held = next(filter(_is_held, self._places), None)
                # put back into the queue before, or by hand
                if held is not None and self.job is not None:
                    self.place.close("stop", reason=judge.HELD, exit_code=RUN_ME_AGAIN)
                    ours = job_leader.script_of(self.place.path) is not None
                    say(
                        hold.format_not_started(
                            held, job_leader.resubmit_command(self.place.path) if ours else ""
                        )
                    )
                    return SupervisionOutcome(
                        RUN_ME_AGAIN, 0, "stop", judge.HELD, None, self.place.path
                    )
                self.hangs = HangWatch(self.options.hangs, self.place.path, self.place.record)
                around.callback(self.hangs.close)
                if _is_held(self.place.path):  # a run prints this itself
                    say(hold.format_hold_message(self.place.path))
                chosen = self.options
                self.job_end = JobEnding(
                    self.job, self.place, chosen.requeue, chosen.max_requeues, chosen.chain
                )
                if self.job_end.is_already_done():
                    self.place.close("end")
                    say(
                        f"{self._name}: done before Slurm started "
                        "this job once more; nothing is left to do"
                    )
                    return SupervisionOutcome(0, 0, "end", "", None, self.place.path)
                if self.job_end.is_on_bad_node():
                    return self._finish(NextStep("leave", BAD_NODE))
                self.time = TimeLimits(self.job, self.options.grace_s, self.options.lead_s)
                around.callback(self.time.watch.close)
                self.notices = (
                    Notices(cloud(self.options.spot)) if self.options.spot is not None else None
                )
                if self.options.keeps:
                    self.kept = ProgramStore(self.place.path, self.program)
                self.environment = {
                    **TORCHRUN,
                    **os.environ,
                    **around.enter_context(job_leader.announcing_supervisor(self.place.path)),
                }
                if self.options.standby:
                    self.standby = Standby(self.place.path, self._name, self.place.record)
                    around.callback(self.standby.close)
                    self.environment = self.standby.environment_for_import_list(self.environment)
                return self._finish(self._run_until_over())
            except BaseException as error:
                said = (
                    error.reason
                    if isinstance(error, ChildError)
                    else f"{type(error).__name__}: {error}"
                )
                self.place.close("failed", error=next(iter(said.splitlines()), ""))
                raise

    def _run_until_over(self) -> NextStep:
        """Start the command until the next step is not another start."""
        took_over = False
        while True:
            if self.signals.told is not None:
                return NextStep("leave", f"told to stop by {self.signals.told}")
            if not took_over:
                self._keep_existing_files()
                took_over = True
            self.attempts.append(self._run_attempt())
            following = judge.decide_next_step(
                self.attempts, self.options.retries, self.options.max_no_progress
            )
            self.place.record("next", **following._asdict())
            if following.do in {"done", "leave", "fail"}:
                return following
            if self.attempts[-1].reason.startswith("SIG") and self.job_end.is_ending():
                return NextStep("leave", ENDING)
            self._report_next_step(following)
            self._wait(following.wait_s * random.uniform(0.75, 1.25))  # noqa: S311  jitter, no cryptography

    def _keep_existing_files(self) -> None:
        """Commit files from which the program would resume, or that it wrote before its
        supervisor was killed.
        """
        if self.kept is None or not isinstance(self.program, AppFile):
            return
        fresh = not self.place.count_events("start") and not self.kept.store.checkpoints()
        if fresh and (found := self.program.found()) is not None:
            self.kept.commit_initial_files(found)
        since_s = begin_of_unended_start(self.place.journal)
        left = self.program.left(since_s) if since_s is not None else None
        if left is None:
            return
        settle_s = left.settle_s or 0.0
        quiet_s = (
            time.time()
            - max((seen.mtime_ns for seen in file_states(left.files).values()), default=0) / 1e9
        )
        self._wait(min(settle_s - quiet_s, settle_s))
        self.kept.commit_left_file(left)

    def _run_attempt(self) -> CommandAttempt:
        """Run one start of the command, from its checkpoint to its outcome."""
        checkpoint = self.kept.newest_valid() if self.kept is not None else None
        time_left_s = self.time.time_left_s()
        own_s = None if time_left_s is None else max(time_left_s - self.time.lead_s(), 1.0)
        command = self.program.begin(
            self.command, checkpoint.path if checkpoint is not None else None, own_s
        )
        if self.kept is not None:
            self.kept.forget_earlier_files()
        self.witness.note_state_before()
        self.diagnosis.start_counting()
        self.time.save_s = self.witness.save_s
        began_s, began_unix_s = time.monotonic(), time.time()
        start = CommandStart(
            self.program,
            command,
            self.environment,
            self.signals,
            self.time,
            self.place.record,
            self._check_saves,
            self.kept.look_s if self.kept is not None else ROUND_S,
            LISTENS_S if self.witness.run is not None else PERHAPS_S,
            self.notices,
            self.place.give_sign_of_life,
            lambda: self.place.lost,
            self.hangs,
            self.standby,
        )
        code = start.run()
        if self.signals.told is None and code != 0:
            self._wait(TOGETHER_S if self.job is not None else 0.0)
        said = self.witness.read_outcome(began_unix_s)
        return self._describe_attempt(start, code, said, checkpoint, began_s, time_left_s)

    def _describe_attempt(
        self,
        start: CommandStart,
        code: int,
        said: RunOutcome,
        checkpoint: Checkpoint | None,
        began_s: float,
        time_left_s: float | None,
    ) -> CommandAttempt:
        self.tail, self.elsewhere = start.tail, start.elsewhere
        told = self.signals.told
        verdict = self.program.verdict(
            ProgramExit(code, start.tail, told is not None, checkpoint is not None)
        )
        # a killed one may leave an incomplete file
        orderly = verdict in {"done", "stopped"} and code >= 0
        step = (
            self.kept.commit_last(orderly=orderly)
            if self.kept is not None and not self.place.lost
            else None
        )
        if said.event == "stop":  # even if a launcher changed the exit code
            verdict = "stopped"
        elif judge.was_interrupted_at_exit(
            code, told, self.signals.told_unix_s, said.event, said.unix_s
        ):
            verdict = "done"
            say(f"{self._name}: its run had ended when {told} came: done")
        progressed = said.progressed
        if self.kept is not None:
            progressed = self.kept.committed > 0
        if self._failed_with_left_checkpoint(verdict, code, checkpoint):
            verdict = "damaged"
        if verdict == "damaged" and self.kept is not None and checkpoint is not None:
            word = LEFT_WORD if checkpoint.head.note == LEFT else "refused"
            self.kept.quarantine(checkpoint, word, "could not be read by the program")
        elif verdict == "damaged":
            verdict = "failed"
        self.diagnosis.note_processes([start.pid])
        failed = verdict == "failed" and told is None
        cause = (
            self.diagnosis.find_cause(code, start.tail, said, self._places)
            if failed
            else self.diagnosis.forget_error()
        )
        node, node_deaths = (
            self.job_end.find_node_at_fault(start.tail) if cause == BAD_NODE else ("", 0)
        )
        attempt = CommandAttempt(
            verdict,
            code,
            time.monotonic() - began_s,
            told,
            failed=said.event == "failed" or (self.kept is not None and verdict == "failed"),
            reason=said.reason,
            progressed=progressed,
            late=self._is_late(time_left_s),
            held=self.is_on_hold,
            refused=said.refused,
            behind=said.behind,
            hung=self.hangs.describe_hang(step),
            cause=cause,
            node=node,
            node_deaths=node_deaths,
            lacks=self.program.lacks if code == 0 and isinstance(self.program, AppFile) else "",
        )
        self.place.record("exit", step=step, **attempt._asdict())
        return attempt

    def _finish(self, last: NextStep) -> SupervisionOutcome:
        """Write the journal's last line; then requeue the job if its cause allows that.

        Raises:
            ChildError: the command failed.
        """
        if last.do == "fail":
            raise self._failure_error(last)
        if last.do == "done":
            self.place.close("end")
            if self.job is not None or self.kept is not None or len(self.attempts) > 1:
                line = format_last_line(self.kept, self.witness.run, self.place.journal)
                say(f"{self._name}: {line}")
            return SupervisionOutcome(0, len(self.attempts), "end", "", None, self.place.path)
        reason = self.signals.told or last.why
        code = (
            judge.exit_code(self.attempts[-1], resumable=self._can_resume)
            if self.attempts
            else RUN_ME_AGAIN
        )
        self._close_store()
        # else it is at work elsewhere
        what = (
            None if self.place.give_sign_of_life() else self.signals.told or CARRIED.get(last.why)
        )
        self.place.close("stop", reason=reason, exit_code=code)
        held = next(filter(_is_held, self._places), None)
        say(f"{self._name}: {format_stop_message(self.attempts, reason, code, held)}")
        carried = self.job_end.continue_job(self.signals, what, self._places) if what else None
        if carried is not None:
            say(carried)
        if code == RUN_ME_AGAIN and self.job_end.exit_code is not None:
            code = self.job_end.exit_code
        return SupervisionOutcome(
            code, len(self.attempts), "stop", reason, carried, self.place.path
        )

    # -- used by the parts above
    # -----------------------------------------------------------------------------------

    @property
    def _places(self) -> list[Path]:
        places = (self.place.path, job_leader.sweep_of(self.place.path), self.witness.run)
        return [path for path in places if path is not None]

    @property
    def is_on_hold(self) -> bool:
        return any(map(_is_held, self._places))

    @property
    def _can_resume(self) -> bool:
        """Whether the next start can resume, or at least detects that it cannot."""
        return self.witness.run is not None or (
            self.kept is not None and bool(self.kept.store.checkpoints())
        )

    @property
    def _name(self) -> str:
        return (
            command_label(self.command)
            if self.command
            else self.options.name or self.place.path.name
        )

    def _is_late(self, left_at_start_s: float | None) -> bool:
        """Whether another start in this job is useless,
        because the program may have stopped for lack of time.
        """
        left_s = self.time.time_left_s()
        if left_s is None or left_at_start_s is None:
            return False
        return left_s <= self.time.lead_s() * 1.5 + LATE_SHARE * left_at_start_s

    def _failed_with_left_checkpoint(
        self, verdict: str, code: int, checkpoint: Checkpoint | None
    ) -> bool:
        """Whether to treat the checkpoint as incomplete.

        It counts as incomplete if it was never seen unchanged and the program failed after loading
        it.
        """
        if (
            self.kept is None
            or checkpoint is None
            or checkpoint.head.note != LEFT
            or self.signals.told is not None
        ):
            return False
        return verdict == "failed" and code != -signal.SIGKILL and not self.kept.committed

    def _check_saves(self, pids: Callable[[], Sequence[int]]) -> float:
        """Look at the run's saves and at new checkpoints;
        return the seconds until the next look.
        """
        self.diagnosis.note_processes(pids())
        if self.time.time_left_s() is not None and time.monotonic() >= self.measured_s + MEASURED_S:
            self.witness.measure_saves()
            self.time.save_s, self.measured_s = self.witness.save_s, time.monotonic()
        if self.kept is None or self.place.lost:
            return ROUND_S
        self.kept.commit_settled(pids)
        return self.kept.look_s

    def _report_next_step(self, following: NextStep) -> None:
        last = self.attempts[-1]
        how = (
            f"{judge.describe_attempt(last)};"
            if last.lacks
            else f"{judge.describe_attempt(last)}; {following.why}:"
        )
        wait = f" in {following.wait_s:.0f} s" if following.wait_s >= 1 else ""
        say(f"{self._name}: {how} started again{wait}")

    def _wait(self, span_s: float) -> None:
        """Wait between two starts; a signal ends the wait."""
        until = time.monotonic() + span_s
        self.signals.received()
        while self.signals.told is None and (left_s := until - time.monotonic()) > 0:
            if self.place.give_sign_of_life():
                self.signals.request_stop(SUPERSEDED)
                return
            poller = select.poll()
            poller.register(self.signals, select.POLLIN)
            poller.poll(min(left_s, BEAT_S) * 1000 + 1)
            self.signals.received()

    def _failure_error(self, last: NextStep) -> ChildError:
        """Return the error for a failed command: what happened, and its last output."""
        why = f": {last.why}" if last.why else ""
        head = f"{self._name}: {judge.describe_attempt(self.attempts[-1])}{why}"
        return ChildError(head, _last_lines(self.tail), _last_lines(self.elsewhere))

    def _close_store(self) -> None:
        if self.kept is not None:
            self.kept.close()


def _last_lines(text: str) -> list[str]:
    return text.rstrip().splitlines()[-SHOWN_LINES:]


def _is_held(path: Path) -> bool:
    return scan.exists(path / hold.HOLD)
