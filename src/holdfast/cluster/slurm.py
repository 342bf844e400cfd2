"""Slurm: the only module that builds Slurm's command lines and parses their output.

Sources: scontrol(1), squeue(1), sbatch(1); their real output was observed on Slurm 22.05
(docs/cluster.md).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from ..batch import sbatch
from ..batch.sbatch_options import LocalSbatch
from ..errors import ClusterError
from ..job import Job
from .ask import CommandResult, require_success, run_command, run_successfully

_SELF_LIMIT_S = 2.0  # to say its version; without a configuration it may look for one for a minute
CONFIG = ("scontrol", "show", "config")
_USABLE = ("idle", "alloc", "mixed", "comp", "planned", "power")
_UNSAID = ("", "(null)", "UNLIMITED", "Partition_Limit")

_LIMITS = ("ReqNodeList", "ExcNodeList", "Features", "Reservation")
_READ = (
    "JobState|Requeue|RunTime|StartTime|PreemptEligibleTime|Partition|Priority|"
    "ReqNodeList|Features|Reservation"
)

# scontrol's name -> sbatch's name.
_OPTIONS = {
    "JobName": "job-name",
    "Partition": "partition",
    "TimeLimit": "time",
    "WorkDir": "chdir",
    "Account": "account",
    "QOS": "qos",
}


class JobStatus(NamedTuple):
    """Slurm's record of a job. Times are Unix seconds; None if there is none."""

    state: str  # "RUNNING", "COMPLETING", ...
    reason: str  # "None", "TimeLimit", ...
    restarts: int
    preempt_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    requeue: bool = True  # Slurm may start it again
    batch: bool = True  # it is a batch job
    command: str = ""  # the submitted script and its arguments; spaces within them are not marked
    options: Mapping[str, str] = MappingProxyType({})  # sbatch options that start another such job
    # what limits the nodes that it may get, under Slurm's own names
    nodes: Mapping[str, str] = MappingProxyType({})


def job_status(job: Job) -> JobStatus | None:
    """Return Slurm's record of the job; None if Slurm does not know it.

    For a heterogeneous job this is the first record, the leader's. Each field is read only at its
    expected position, because a job's name can contain any text.

    Raises:
        ClusterError: no answer, or one of unknown form; `Absent` and `Silent` where these apply.
    """
    answer = run_command(["scontrol", "show", "job", job.id])
    if answer.code and re.search("Invalid job id", answer.err + answer.out, re.IGNORECASE):
        return None
    require_success(answer, f"scontrol show job {job.id}")
    record = answer.out.lstrip("\n").split("\n\n", maxsplit=1)[0]
    first, *lines = record.split("\n")
    found = {"JobName": first.partition(" JobName=")[2]}
    for line in lines:
        whole = re.match(r"   (Command|WorkDir)=(.*)", line)
        if whole:
            found.setdefault(whole[1], whole[2])
        elif re.match(rf"   ({_READ})=", line):
            for name, value in re.findall(r"(\w+)=(\S*)", line):
                found.setdefault(name, value)
    if not found.get("JobState", "").isupper() or not found.get("Restarts", "").isdecimal():
        raise ClusterError("scontrol show job answered something that is not about a job")
    preempt_s, start_s, end_s = (
        _parse_time(found.get(name)) for name in ("PreemptTime", "StartTime", "EndTime")
    )
    return JobStatus(
        found["JobState"],
        found.get("Reason", "None"),
        int(found["Restarts"]),
        preempt_s,
        start_s,
        end_s,
        found.get("Requeue") != "0",
        found.get("BatchFlag") != "0",
        found.get("Command", "").removesuffix("(null)"),
        {
            option: found[name]
            for name, option in _OPTIONS.items()
            if found.get(name, "(null)") not in _UNSAID
        },
        {name: found[name] for name in _LIMITS if found.get(name, "(null)") not in _UNSAID},
    )


def requeue(job: Job) -> None:
    """Put the job back into the queue; this process is ended some seconds later.

    Raises:
        ClusterError: Slurm refused. After `Absent` or `Silent` it is unknown whether the job was
            requeued.
    """
    run_successfully(["scontrol", "requeue", job.id])


def exclude(job: Job, nodes: Iterable[str]) -> None:
    """Exclude these nodes, and no others, for a job that waits in the queue.

    Raises:
        ClusterError: Slurm refused, as it does while the job runs.
    """
    run_successfully(["scontrol", "update", f"JobId={job.id}", f"ExcNodeList={','.join(nodes)}"])


class NodeFacts(NamedTuple):
    """A node of a partition."""

    state: str
    gres: str
    cpus: int
    memory_mib: int
    features: str

    @property
    def usable(self) -> bool:
        """Whether jobs can get it, now or later. Source: sinfo(1), NODE STATE CODES."""
        return self.state.startswith(_USABLE) and not self.state.endswith(("*", "$"))

    def is_equivalent(self, other: NodeFacts, constraint: str | None) -> bool:
        """Whether a job that runs on `other` can run here; `constraint`: its --constraint."""
        as_large = self.cpus >= other.cpus and self.memory_mib >= other.memory_mib
        return (
            as_large
            and self.gres == other.gres
            and (not constraint or self.features == other.features)
        )


def partition_nodes(partition: str) -> dict[str, NodeFacts]:
    """Return the nodes of a partition.

    Raises:
        ClusterError: Slurm does not tell.
    """
    out = run_successfully(
        ["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N|%T|%G|%c|%m|%f"]
    ).out
    rows = [line.split("|", 5) for line in out.splitlines() if line.count("|") >= 5]
    return {
        name: NodeFacts(state, gres, _leading_number(cpus), _leading_number(memory), features)
        for name, state, gres, cpus, memory, features in rows
    }


def _leading_number(text: str) -> int:
    """Return the number that a text begins with, such as "64+"; 0 if there is none."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def hostnames(text: str) -> list[str]:
    """Return the nodes of a list as Slurm writes it: n[1-3,7],x.

    Raises:
        ClusterError: Slurm does not tell.
    """
    return run_successfully(["scontrol", "show", "hostnames", text]).out.split() if text else []


def submit(arguments: Sequence[str], script: str = "") -> str:
    """Submit a batch script, given by the arguments or as text; return the new job's id.

    The new job does not inherit the variables that Slurm set for our own job.

    Raises:
        ClusterError: Slurm refused; the message quotes it.
    """
    ours = {name: value for name, value in os.environ.items() if not _is_job_variable(name)}
    out = run_successfully(["sbatch", "--parsable", *arguments], text=script, environment=ours).out
    number = out.strip().splitlines()[-1].split(";")[0] if out.strip() else ""  # id;cluster
    if not number.isdecimal():
        raise ClusterError(f"sbatch answered {out.strip()!r}, which is no job id")
    return number


def local_sbatch() -> LocalSbatch:
    """Return the version and help of this machine's sbatch;
    empty if there is none, or if it does not answer.
    """
    with suppress(ClusterError):
        version = re.search(
            r"\d+\.\d+\S*", run_command(["sbatch", "--version"], limit_s=_SELF_LIMIT_S).out
        )
        if version:
            return LocalSbatch(
                version[0], run_command(["sbatch", "--help"], limit_s=_SELF_LIMIT_S).out
            )
    return LocalSbatch()


class Queued(NamedTuple):
    """A job in the queue, or a task of an array."""

    job: str  # of an array's task: the array's id
    task: str | None
    state: str  # "PENDING", "RUNNING", ...
    reason: str = ""  # why it waits: "Priority", "Resources", ...
    nodes: str = ""
    end_s: float | None = None  # when its time limit ends it, in Unix seconds
    script: str = ""  # the submitted script's path


def read_queue() -> list[Queued]:
    """Return this user's jobs that wait or run; each task of an array by itself.

    Raises:
        ClusterError: Slurm does not answer.
    """
    asked = "--format=%F|%K|%T|%r|%N|%e|%Z|%o"
    out = run_successfully(["squeue", "--noheader", "--array", f"--user={os.getuid()}", asked]).out
    rows = [line.split("|", 7) for line in out.splitlines() if line.count("|") >= 7]
    return [
        Queued(
            job,
            task if task.isdecimal() else None,
            state,
            "" if why == "None" else why,
            nodes,
            _parse_time(end),
            os.path.join(folder, script),
        )
        for job, task, state, why, nodes, end, folder, script in rows
    ]


def cancel(ids: Sequence[str]) -> None:
    """Cancel jobs, or tasks of an array that have not begun.

    Raises:
        ClusterError: Slurm refused; the message quotes it.
    """
    run_successfully(["scancel", *ids])


def kills_its_step(command: Sequence[str], number: int) -> bool:
    """Whether `srun`, on this signal,
    kills its tasks or waits for a second one instead of forwarding it.
    """
    return os.path.basename(command[0]) == "srun" and number not in (signal.SIGUSR1, signal.SIGUSR2)


def signal_to_steps(job: Job, number: int) -> list[str]:
    """Return the command that signals all tasks of this job's steps, but not its batch shell."""
    return ["scancel", f"--signal={signal.Signals(number).name.removeprefix('SIG')}", job.id]


def show_script_command(job: Job) -> tuple[str, ...]:
    """Return the command that prints the script that was submitted."""
    return ("scontrol", "write", "batch_script", job.id, "-")


def batch_script(job: Job) -> str:
    """Return the script that was submitted.

    Raises:
        ClusterError: there is none, or we may not read it.
    """
    return run_successfully(show_script_command(job)).out


def kill_wait_s() -> float:
    """Return the seconds between SIGTERM and SIGKILL.

    Raises:
        ClusterError: Slurm does not report it.
    """
    return parse_setting_s("KillWait", run_successfully(CONFIG).out)


def parse_setting_s(name: str, text: str) -> float:
    """Return the number called `name` in the output of `scontrol show`.

    Raises:
        ClusterError: it is not there.
    """
    found = re.search(rf"\b{name}\s*=\s*(\d+)", text)
    if found is None:
        raise ClusterError(f"scontrol does not say {name}")
    return float(found[1])


def read_config() -> dict[str, str]:
    """Return Slurm's settings, under its own names.

    Raises:
        ClusterError: Slurm does not report them.
    """
    return dict(re.findall(r"^(\w+)\s*= ?(.*?)\s*$", run_successfully(CONFIG).out, re.MULTILINE))


def read_partitions() -> dict[str, dict[str, str]]:
    """Return the settings of each partition, under Slurm's own names.

    Raises:
        ClusterError: Slurm does not report them.
    """
    records = run_successfully(["scontrol", "show", "partition", "--all"]).out.split("\n\n")
    found = [dict(re.findall(r"(\w+)=(\S*)", record)) for record in records]
    return {facts["PartitionName"]: facts for facts in found if "PartitionName" in facts}


def time_left_command(job: Job) -> tuple[str, ...]:
    """Return the command whose output `parse_time_left` parses."""
    return ("squeue", "--noheader", "--jobs", job.id, "--format", "%L")


def parse_time_left(answer: CommandResult) -> float:
    """Return the seconds in the output of `squeue -o %L`: D-HH:MM:SS, MM:SS, UNLIMITED.

    Raises:
        ClusterError: the output has another form: the job is not running, or its time left is
            unknown.
    """
    text = answer.out.strip()
    if text == "UNLIMITED":
        return float("inf")
    left_s = sbatch.parse_time_span_s(text) if ":" in text else None
    if answer.code or left_s is None:
        raise ClusterError(
            f"squeue says of the time left: {text or answer.err.strip() or 'nothing'}"
        )
    return left_s


def _is_job_variable(name: str) -> bool:
    return (
        name.startswith(("SLURM_", "SLURMD_", "HOLDFAST_SUPERVISOR", "HOLDFAST_TASK"))
        and name != "SLURM_CONF"
    )


def _parse_time(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() else None
