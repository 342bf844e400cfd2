"""Other schedulers than Slurm: what makes each start a job again. From their documentation, not tried on them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..job import Job

RUN_ME_AGAIN = 75


class Rule(NamedTuple):
    """How one scheduler starts a job again, and what must have told us to stop for that to be right."""

    notices: Sequence[str]  # what can only mean a limit, or a preemption: never a cancellation
    exit_code: int | None = None  # ends the job with "start me again"
    listed: str = ""  # environment variable that has to name that code
    requeue: tuple[str, ...] = ()  # the command, with {id}
    again: str = ""  # what the user types when nothing else works


# Sources. PBS: qrerun(8B), which wants operator rights at many sites. LSF: lsb.queues, REQUEUE_EXIT_VALUES;
# brequeue(1); bsub -wa. Grid Engine: queue_conf(5), s_rt and notify; sge_conf(5), FORBID_RESCHEDULE: exit status 99
# reschedules. Flux: flux-submit(1), --signal and --dependency; nothing requeues. Kubernetes: Job, podFailurePolicy and
# restartPolicy: a pod that ends with anything but 0 is made anew while its Job lives; a deleted Job makes none.
RULES: Mapping[str, Rule] = {
    "pbs": Rule(
        ("deadline", "SIGUSR1", "SIGXCPU"), requeue=("qrerun", "{id}"), again="qrerun {id}, or qsub, with its script"
    ),
    "lsf": Rule(
        ("deadline", "SIGUSR1", "SIGUSR2"),
        RUN_ME_AGAIN,
        "LSB_EXIT_REQUEUE",
        ("brequeue", "-r", "{id}"),
        "brequeue -r {id}, or bsub, with its script",
    ),
    "sge": Rule(("deadline", "SIGUSR1", "SIGXCPU"), 99, again="qsub, with its script"),
    "flux": Rule(("deadline", "SIGUSR1", "SIGUSR2"), again="flux batch --dependency=afterany:{id}, with its script"),
    "kubernetes": Rule(
        ("deadline", "SIGTERM", "SIGUSR1", "SIGUSR2"), RUN_ME_AGAIN, again="kubectl create -f, with its Job"
    ),
}


def exit_code(job: Job, what: str, environment: Mapping[str, str] = os.environ) -> int | None:
    """What the job has to end with for its scheduler to start it again; None where that is no matter of exit codes.

    `what` told us to stop: a signal's name, or "deadline". None also when it may have been a cancellation.
    """
    rule = RULES.get(job.scheduler)
    if rule is None or what not in rule.notices:
        return None
    listed = not rule.listed or str(rule.exit_code) in environment.get(rule.listed, "").split()
    return rule.exit_code if listed else None
