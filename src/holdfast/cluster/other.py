"""Other schedulers than Slurm: what makes each of them start a job again. From their documentation, not tried on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ..errors import ClusterError
from ..job import Job
from .ask import ask

DEADLINE = "deadline"
RUN_ME_AGAIN = 75


class Rule(NamedTuple):
    """How one scheduler starts a job again, and what must have told us to stop for that to be right."""

    notices: frozenset[str]  # signals that can only mean a limit, or a preemption: never a cancellation
    exit_code: int | None = None  # ends the job with "start me again"
    listed: str = ""  # environment variable that has to name that code
    requeue: tuple[str, ...] = ()  # the command, with {id}
    again: str = ""  # what the user types when nothing else works


# Sources. PBS: qrerun(8B), which wants operator rights at many sites. LSF: lsb.queues, REQUEUE_EXIT_VALUES; brequeue(1);
# bsub -wa. Grid Engine: queue_conf(5), s_rt and notify; sge_conf(5), FORBID_RESCHEDULE: exit status 99 reschedules.
# Flux: flux-submit(1), --signal and --dependency; nothing requeues. Kubernetes: Job, podFailurePolicy and restartPolicy:
# a pod that ends with anything but 0 is made anew while its Job lives, and a Job that was deleted makes none.
RULES: Mapping[str, Rule] = {
    "pbs": Rule(
        frozenset({"SIGUSR1", "SIGXCPU"}), requeue=("qrerun", "{id}"), again="qrerun {id}, or qsub, with its script"
    ),
    "lsf": Rule(
        frozenset({"SIGUSR1", "SIGUSR2"}),
        RUN_ME_AGAIN,
        "LSB_EXIT_REQUEUE",
        ("brequeue", "-r", "{id}"),
        "brequeue -r {id}, or bsub, with its script",
    ),
    "sge": Rule(frozenset({"SIGUSR1", "SIGXCPU"}), 99, again="qsub, with its script"),
    "flux": Rule(frozenset({"SIGUSR1", "SIGUSR2"}), again="flux batch --dependency=afterany:{id}, with its script"),
    "kubernetes": Rule(
        frozenset({"SIGTERM", "SIGUSR1", "SIGUSR2"}), RUN_ME_AGAIN, again="kubectl create -f, with its Job"
    ),
}


class Onward(NamedTuple):
    """What becomes of the job, and the line that says so."""

    how: Literal["by its rule", "requeued", "unclear", "failed"]
    line: str


def exit_code(job: Job, what: str, environment: Mapping[str, str] = os.environ) -> int | None:
    """What the job has to end with for its scheduler to start it again; None where that is no matter of exit codes.

    `what` told us to stop: a signal's name, or "deadline". None also when it may have been a cancellation.
    """
    rule = RULES.get(job.scheduler)
    if rule is None or not _is_notice(rule, what):
        return None
    listed = not rule.listed or str(rule.exit_code) in environment.get(rule.listed, "").split()
    return rule.exit_code if listed else None


def carry_on(job: Job, what: str, environment: Mapping[str, str] = os.environ) -> Onward:
    """Start the job again, as its scheduler wants it, if `what` told us to stop cannot have been a cancellation.

    Never raises.
    """
    rule, name = RULES[job.scheduler], f"job {job.id}"
    again = f"To go on, type: {rule.again.format(id=job.id)}"
    if not _is_notice(rule, what):
        return Onward("unclear", f"{name}: why {what} came is unclear, so it is not requeued. {again}")
    code = exit_code(job, what, environment)
    if code is not None:
        return Onward("by its rule", f"{name}: exit code {code} makes {job.scheduler} start it again")
    if not rule.requeue:
        return Onward("failed", f"{name}: {job.scheduler} starts no job again. {again}")
    try:
        answer = ask([word.format(id=job.id) for word in rule.requeue])
    except ClusterError as error:
        return Onward("failed", f"{name} could not be requeued: {error}. {again}")
    if answer.code:
        said = (answer.err or answer.out).strip().splitlines()
        refusal = said[-1] if said else f"exit {answer.code}"
        return Onward("failed", f"{name} could not be requeued: {rule.requeue[0]}: {refusal}. {again}")
    return Onward("requeued", f"{name}: requeued")


def _is_notice(rule: Rule, what: str) -> bool:
    return what == DEADLINE or what in rule.notices
