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
from .ask import Absent, Asked, CommandResult
from .job_leader import speaks

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

    The first value of the end comes from the environment. `look` is called at safe points; only
    rank 0 queries.
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
        self._asked: Asked | None = None
        self._questions: list[_Question] = []
        if here is None or not speaks(here, environment):
            return
        self._script = slurm.script_of(here)
        soon_s = (0.0, FIRST_S)
        if end:
            self._ask(
                slurm.left_of(here), self._take_end, soon_s if self.end_s is None else PAUSE_S
            )
        self._ask(slurm.CONFIG, self._take_kill_wait, soon_s)
        if partition := environment.get("SLURM_JOB_PARTITION"):
            self._ask(("scontrol", "show", "partition", partition), self._take_grace, soon_s)

    def look(self) -> None:
        """Read the answers that have come, and send the queries that are due.

        A failed query is repeated a minute later.
        """
        while self._questions and (question := min(self._questions)).due_s <= time.monotonic():
            try:
                self._asked = self._asked or Asked(question.command)
                if (answer := self._asked.look()) is None:
                    return
                over = question.take(answer)
            except ClusterError as error:
                over = isinstance(error, Absent)
            self._asked = None
            self._questions.remove(question)
            if not over:
                self._ask(question.command, question.take, PAUSE_S)

    def look_up_lead(self) -> None:
        """Query once which notice the job's script asks for."""
        if self._script is not None:
            self._ask(self._script, self._take_lead, (0.0, 0.0))
            self._script = None

    def close(self) -> None:
        self._questions = []
        if self._asked is not None:
            self._asked.close()

    def _ask(
        self,
        command: Sequence[str],
        take: Callable[[CommandResult], bool],
        pause_s: Sequence[float],
    ) -> None:
        self._questions.append(_Question(time.monotonic() + DICE.uniform(*pause_s), command, take))

    def _take_end(self, answer: CommandResult) -> bool:
        left_s = slurm.read_left(answer)
        self.end_s = None if left_s == float("inf") else time.time() + left_s
        return False

    def _take_kill_wait(self, answer: CommandResult) -> bool:
        self.kill_wait_s = slurm.read_seconds("KillWait", answer.out)
        return True

    def _take_lead(self, answer: CommandResult) -> bool:
        signal = sbatch.signal(sbatch.directives(answer.out).options)
        self.lead_s = float(signal.lead_s) if signal is not None else 0.0
        return True

    def _take_grace(self, answer: CommandResult) -> bool:
        self.preempt_s = slurm.read_seconds("GraceTime", answer.out)
        return True
