"""Other schedulers than Slurm: how each starts a job again.
From their documentation, not tested on them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..job import Job

RUN_ME_AGAIN = 75


class RestartRule(NamedTuple):
    """How one scheduler starts a job again, and which notices permit that."""

    # signals that can only mean a limit or a preemption, never a cancellation
    notices: Sequence[str]
    exit_code: int | None = None  # makes the scheduler start the job again
    listed: str = ""  # environment variable that must list that code
    requeue: tuple[str, ...] = ()  # the command, with {id}
    again: str = ""  # what the user types when everything else fails


# Sources. PBS: qrerun(8B), which needs operator rights at many sites. LSF: lsb.queues,
# REQUEUE_EXIT_VALUES; brequeue(1); bsub -wa. Grid Engine: queue_conf(5), s_rt and notify;
# sge_conf(5), FORBID_RESCHEDULE: exit status 99 reschedules. Flux: flux-submit(1), --signal and
# --dependency; it cannot requeue. Kubernetes: Job, podFailurePolicy and restartPolicy: while its
# Job exists, a pod that ends with another code than 0 is replaced; after the Job is deleted it is
# not.
RULES: Mapping[str, RestartRule] = {
    "pbs": RestartRule(
        ("deadline", "SIGUSR1", "SIGXCPU"),
        requeue=("qrerun", "{id}"),
        again="qrerun {id}, or qsub, with its script",
    ),
    "lsf": RestartRule(
        ("deadline", "SIGUSR1", "SIGUSR2"),
        RUN_ME_AGAIN,
        "LSB_EXIT_REQUEUE",
        ("brequeue", "-r", "{id}"),
        "brequeue -r {id}, or bsub, with its script",
    ),
    "sge": RestartRule(("deadline", "SIGUSR1", "SIGXCPU"), 99, again="qsub, with its script"),
    "flux": RestartRule(
        ("deadline", "SIGUSR1", "SIGUSR2"),
        again="flux batch --dependency=afterany:{id}, with its script",
    ),
    "kubernetes": RestartRule(
        ("deadline", "SIGTERM", "SIGUSR1", "SIGUSR2"),
        RUN_ME_AGAIN,
        again="kubectl create -f, with its Job",
    ),
}


def exit_code(job: Job, what: str, environment: Mapping[str, str] = os.environ) -> int | None:
    """The exit code that makes the scheduler restart the job; None if exit codes do not decide
    that.

    `what` told us to stop: a signal's name, or "deadline". The result is also None if it may mean a
    cancellation.
    """
    rule = RULES.get(job.scheduler)
    if rule is None or what not in rule.notices:
        return None
    listed = not rule.listed or str(rule.exit_code) in environment.get(rule.listed, "").split()
    return rule.exit_code if listed else None
