"""Watch: when the job ends and how long its grace is, asked now and then, without ever waiting for an answer."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence

from ..errors import ClusterError
from ..job import Job
from . import slurm
from .ask import Absent, Asked, CommandResult
from .job_leader import speaks

PAUSE_S = (60.0, 90.0)  # between two questions: 500 jobs that began together do not ask together
FIRST_S = 2.0
DICE = random.SystemRandom()  # the script's own random numbers are left alone


class Ends:
    """The end of a job's time: what the environment says, then what the scheduler does, at most once a minute.

    `look` is called at safe points; only process number 0 asks.
    """

    def __init__(self, job: Job | None, environment: Mapping[str, str] = os.environ) -> None:
        told = environment.get("SLURM_JOB_END_TIME", "") if job and job.scheduler == "slurm" else ""
        self.end_s: float | None = float(told) if told.isdecimal() else None  # Unix seconds; None: no end is known
        self._job = job if job and job.scheduler == "slurm" and speaks(job, environment) else None
        self._asked: Asked | None = None
        self._next_s = time.monotonic() + DICE.uniform(*((0, FIRST_S) if self.end_s is None else PAUSE_S))

    def look(self) -> None:
        """Take an answer that has come, ask when it is time. What fails is asked again a minute later."""
        if self._job is None:
            return
        try:
            if self._asked is not None:
                self._take(self._asked.look())
            elif time.monotonic() >= self._next_s:
                self._asked = slurm.asking_left(self._job)
        except Absent:
            self._job = None
        except ClusterError:
            self._rest()

    def close(self) -> None:
        if self._asked is not None:
            self._asked.end()
            self._asked = None
        self._job = None

    def _take(self, answer: CommandResult | None) -> None:
        if answer is not None:
            left_s = slurm.read_left(answer)
            self.end_s = None if left_s == float("inf") else time.time() + left_s
            self._rest()

    def _rest(self) -> None:
        self._asked, self._next_s = None, time.monotonic() + DICE.uniform(*PAUSE_S)


class Grace:
    """How long a job has after SIGTERM, and before it when it is preempted; asked once. None: not known."""

    def __init__(self, job: Job | None, environment: Mapping[str, str] = os.environ) -> None:
        self.kill_wait_s: float | None = None
        self.preempt_s: float | None = None
        self._asked: Asked | None = None
        self._begin_s = time.monotonic() + DICE.uniform(0, FIRST_S)
        self._questions: list[tuple[Sequence[str], Callable[[str], None]]] = []
        if job is not None and job.scheduler == "slurm" and speaks(job, environment):
            self._questions.append((slurm.KILL_WAIT, self._take_kill_wait))
            partition = environment.get("SLURM_JOB_PARTITION")
            if partition:
                self._questions.append((slurm.grace_of(partition), self._take_grace))

    def look(self) -> None:
        """Take an answer that has come, ask the next question. What fails stays unknown."""
        if not self._questions or time.monotonic() < self._begin_s:
            return
        command, take = self._questions[0]
        try:
            if self._asked is None:
                self._asked = Asked(command)
            answer = self._asked.look()
            if answer is not None:
                self._next()
                take(answer.out)
        except Absent:
            self._questions = []
        except ClusterError:
            self._next()

    def close(self) -> None:
        if self._asked is not None:
            self._asked.end()
        self._asked, self._questions = None, []

    def _next(self) -> None:
        self._asked, self._questions = None, self._questions[1:]

    def _take_kill_wait(self, text: str) -> None:
        self.kill_wait_s = slurm.read_kill_wait(text)

    def _take_grace(self, text: str) -> None:
        self.preempt_s = slurm.read_grace(text)
