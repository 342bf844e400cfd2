"""Scheduler:
how Slurm is configured to treat a job at its time limit or when its node is taken away.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..cluster import slurm
from ..errors import ClusterError
from ..job import job
from .check import Check, ok, problem, warning

SHORT_S = 30


class SlurmSettings(NamedTuple):
    """Slurm's settings for itself and for one partition."""

    whole: Mapping[str, str]
    partition: Mapping[str, str]

    @property
    def kill_wait_s(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        return float(self.whole.get("KillWait", "30").split()[0])

    @property
    def preempts(self) -> str:
        """What happens to a preempted job: "OFF", "REQUEUE", "CANCEL", ..."""
        return self.partition.get("PreemptMode") or self.whole.get("PreemptMode", "OFF")

    @property
    def grace_s(self) -> float:
        """Seconds from the first signal of a preemption to SIGKILL, for a process that replaces the
        batch shell.

        Such a process gets the partition's grace time only where Slurm sends the job's own signal
        at once.
        """
        told = "preempt_send_user_signal" in self.whole.get("SlurmctldParameters", "")
        return self.kill_wait_s + (float(self.partition.get("GraceTime", "0")) if told else 0.0)


def read_settings(partition: str | None) -> SlurmSettings | None:
    """Return the settings of the cluster and of that partition, else of the default one; None
    without Slurm.

    Raises:
        ClusterError: Slurm does not answer, or has no such partition.
    """
    if shutil.which("scontrol") is None:
        return None
    found = slurm.read_partitions()
    if partition is not None and partition not in found:
        raise ClusterError(
            f"there is no partition {partition}; there are {', '.join(sorted(found))}"
        )
    default = next((name for name, facts in found.items() if facts.get("Default") == "YES"), "")
    return SlurmSettings(slurm.read_config(), found.get(partition or default, {}))


def check_scheduler(partition: str | None) -> tuple[list[Check], SlurmSettings | None]:
    """Check whether Slurm answers and how it is configured;
    return also its settings, if it has answered.
    """
    try:
        found = read_settings(partition)
    except ClusterError as error:
        # Slurm's commands are installed, and know of no cluster
        if "configuration source" in str(error):
            what = "Slurm is installed here, but belongs to no cluster"
            return [
                warning(
                    "scheduler", what, "to submit jobs, call doctor on a machine of the cluster"
                )
            ], None
        return [
            problem(
                "scheduler", str(error), "nothing can be submitted or requeued until it answers"
            )
        ], None
    if found is not None:
        answers = ok("scheduler", f"Slurm {found.whole.get('SLURM_VERSION', '')} answers")
        return [answers, *_check_behaviour(found)], found
    if (here := job()) is None:
        return [ok("scheduler", "none here: no scontrol on PATH")], None
    todo = "a container? start it with holdfast run outside of it, which requeues"
    return [warning("scheduler", f"a {here.scheduler} job, and no scontrol on PATH", todo)], None


def _check_behaviour(found: SlurmSettings) -> Iterator[Check]:
    name = found.partition.get("PartitionName", "?")
    killed = f"{found.kill_wait_s:.0f} s from SIGTERM to SIGKILL"
    if found.kill_wait_s < SHORT_S:
        yield warning(
            "KillWait",
            killed,
            "a save that takes longer must begin earlier: holdfast submit --lead",
        )
    else:
        yield ok("KillWait", killed)
    grace = f"{name}: {found.partition.get('GraceTime', '0')} s of grace"
    if found.preempts.startswith("OFF"):
        yield ok("preemption", f"{name}: jobs are not preempted")
    elif "CANCEL" in found.preempts:
        yield warning(
            "preemption",
            f"{grace}, then the job is cancelled",
            "holdfast run asks for its requeue in time",
        )
    else:
        yield ok("preemption", f"{grace}, then {found.preempts}")
    if found.whole.get("JobRequeue") == "0":
        yield warning(
            "JobRequeue",
            "0: jobs are not started again",
            "write --requeue, as holdfast submit does",
        )
    else:
        yield ok("JobRequeue", "1: jobs are started again after a lost node")
