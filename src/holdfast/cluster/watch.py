"""Watch: polls when the job ends and how long its grace time is,
without ever waiting for an answer.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..batch import sbatch
from ..errors import ClusterError
from ..job import Job
from . import slurm
from .ask import Absent, CommandResult, RunningCommand
from .job_leader import is_job_leader

# between two queries; random, so that 500 jobs that began together do not query together
PAUSE_S = (60.0, 90.0)
FIRST_S = 2.0
DICE = random.SystemRandom()  # not the script's own random numbers, which must not change


class _Question(NamedTuple):
    due_s: float  # monotonic
    command: Sequence[str]
    take: Callable[[CommandResult], bool]  # takes the answer; returns whether to stop querying


class JobWatch:
    """Under Slurm, queries when a job's time ends, every 60 to 90 s, and its grace times until they
    are known.

    `end_s` is None if it is unknown or unlimited; a grace time is None if it is unknown.

    The first value of the end comes from the environment. `poll_answers` is called at safe points;
    only rank 0 queries.
    """

    def __init__(
        self, job: Job | None, environment: Mapping[str, str] = os.environ, *, end: bool = True
    ) -> None:
        here = job if job is not None and job.scheduler == "slurm" else None
        told = environment.get("SLURM_JOB_END_TIME", "") if here and end else ""
        self.end_s: float | None = float(told) if told.isdecimal() else None  # Unix seconds
        self.kill_wait_s: float | None = None  # between SIGTERM and SIGKILL
        self.preempt_s: float | None = None  # before SIGTERM, of a preempted job
        # of the notice that the script asks for, 0: none; None: not looked up
        self.lead_s: float | None = None
        self._script: Sequence[str] | None = None  # the query for it, until it is sent
        self._asked: RunningCommand | None = None
        self._questions: list[_Question] = []
        if here is None or not is_job_leader(here, environment):
            return
        self._script = slurm.show_script_command(here)
        soon_s = (0.0, FIRST_S)
        if end:
            self._schedule_query(
                slurm.time_left_command(here),
                self._parse_end,
                soon_s if self.end_s is None else PAUSE_S,
            )
        self._schedule_query(slurm.CONFIG, self._parse_kill_wait, soon_s)
        if partition := environment.get("SLURM_JOB_PARTITION"):
            self._schedule_query(
                ("scontrol", "show", "partition", partition), self._parse_grace, soon_s
            )

    def poll_answers(self) -> None:
        """Read the answers that have come, and send the queries that are due.

        A failed query is repeated a minute later.
        """
        while self._questions and (question := min(self._questions)).due_s <= time.monotonic():
            try:
                self._asked = self._asked or RunningCommand(question.command)
                if (answer := self._asked.poll_result()) is None:
                    return
                over = question.take(answer)
            except ClusterError as error:
                over = isinstance(error, Absent)
            self._asked = None
            self._questions.remove(question)
            if not over:
                self._schedule_query(question.command, question.take, PAUSE_S)

    def query_lead(self) -> None:
        """Query once which notice the job's script asks for."""
        if self._script is not None:
            self._schedule_query(self._script, self._parse_lead, (0.0, 0.0))
            self._script = None

    def close(self) -> None:
        self._questions = []
        if self._asked is not None:
            self._asked.close()

    def _schedule_query(
        self,
        command: Sequence[str],
        take: Callable[[CommandResult], bool],
        pause_s: Sequence[float],
    ) -> None:
        self._questions.append(_Question(time.monotonic() + DICE.uniform(*pause_s), command, take))

    def _parse_end(self, answer: CommandResult) -> bool:
        left_s = slurm.parse_time_left(answer)
        self.end_s = None if left_s == float("inf") else time.time() + left_s
        return False

    def _parse_kill_wait(self, answer: CommandResult) -> bool:
        self.kill_wait_s = slurm.parse_setting_s("KillWait", answer.out)
        return True

    def _parse_lead(self, answer: CommandResult) -> bool:
        signal = sbatch.requested_signal(sbatch.parse_directives(answer.out).options)
        self.lead_s = float(signal.lead_s) if signal is not None else 0.0
        return True

    def _parse_grace(self, answer: CommandResult) -> bool:
        self.preempt_s = slurm.parse_setting_s("GraceTime", answer.out)
        return True
