"""Slurm: the only place that makes Slurm's command lines and reads its answers.

Sources: scontrol(1), squeue(1), sbatch(1); what they really say was observed on Slurm 22.05 (docs/cluster.md).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ..errors import ClusterError
from ..job import Job
from .ask import Absent, Asked, CommandResult, Silent, ask

# Nobody is at home, or the answer got lost: as opposed to a refusal, worth another try.
_AWAY = re.compile(
    r"Unable to contact|Connection refused|timed out|Socket timed out|Communication connection failure|Zero Bytes"
    r"|Transport endpoint|backup slurmctld|slurmctld is in standby|Resource temporarily unavailable|Connection reset"
    r"|Unexpected message received|try again",
    re.IGNORECASE,
)
_UNSAID = ("", "(null)", "UNLIMITED", "Partition_Limit")
_UNKNOWN_JOB = re.compile(r"Invalid job id", re.IGNORECASE)

# squeue's names for what we want to know, and scontrol's.
_FIELDS = {
    "State": "JobState",
    "Reason": "Reason",
    "RestartCnt": "Restarts",
    "PreemptTime": "PreemptTime",
    "StartTime": "StartTime",
    "EndTime": "EndTime",
    "Partition": "Partition",
    "Command": "Command",
    "WorkDir": "WorkDir",
    "Name": "JobName",
}
# What scontrol calls them, and sbatch.
_OPTIONS = {
    "JobName": "job-name",
    "Partition": "partition",
    "TimeLimit": "time",
    "WorkDir": "chdir",
    "Account": "account",
    "QOS": "qos",
}


class JobStatus(NamedTuple):
    """What Slurm says of a job. Times are Unix seconds; None when there is none."""

    state: str  # "RUNNING", "COMPLETING", ...
    reason: str  # "None", "TimeLimit", ...
    restarts: int
    preempt_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    requeue: bool = True  # Slurm may start it again
    batch: bool = True  # it has a script
    partition: str = ""
    command: str = ""  # the script that was submitted, and its arguments as if none had spaces
    options: Mapping[str, str] = MappingProxyType({})  # of sbatch's, which start another such job


def seen(job: Job) -> JobStatus | None:
    """What Slurm says of the job; None when it knows of none.

    Raises:
        ClusterError: it did not answer, or not in words that we know; `Absent`, `Silent` where that is so.
    """
    try:
        answer = _asked(["scontrol", "show", "job", job.id])
    except Absent:
        return _seen_in_queue(job)
    if answer.code:
        if _UNKNOWN_JOB.search(answer.err + answer.out):
            return None
        raise ClusterError(f"scontrol show job {job.id}: {_words(answer)}")
    return read_job(answer.out)


def read_job(text: str) -> JobStatus:
    """`text`, which scontrol said of a job, read. The first record counts: of a heterogeneous job the leader's.

    Only what stands where scontrol puts it is believed: a job's name may hold anything.
    """
    record = text.lstrip("\n").split("\n\n", maxsplit=1)[0]
    first, *lines = record.split("\n")
    found = {"JobName": first.partition(" JobName=")[2]}
    for line in lines:
        whole = re.match(r"   (Command|WorkDir)=(.*)", line)
        if whole:
            found.setdefault(whole[1], whole[2])
        elif re.match(r"   (JobState|Requeue|RunTime|StartTime|PreemptEligibleTime|Partition|Priority)=", line):
            for name, value in re.findall(r"(\w+)=(\S*)", line):
                found.setdefault(name, value)
    return _seen(found, "scontrol show job")


def _seen_in_queue(job: Job) -> JobStatus | None:
    """As `seen`, where there is squeue and no scontrol."""
    form = ",".join(f"{name}:|" for name in _FIELDS)
    answer = _asked(["squeue", "--noheader", "--states=all", "--jobs", job.id, "--Format", form])
    if answer.code and not _UNKNOWN_JOB.search(answer.err):
        raise ClusterError(f"squeue: {_words(answer)}")
    lines = answer.out.strip().splitlines()
    if answer.code or not lines:
        return None
    return _seen(dict(zip(_FIELDS.values(), (word.strip() for word in lines[0].split("|")), strict=False)), "squeue")


def _seen(found: dict[str, str], source: str) -> JobStatus:
    if not found.get("JobState", "").isupper() or not found.get("Restarts", "").isdecimal():
        raise ClusterError(f"{source} answered something that is not about a job")
    return JobStatus(
        found["JobState"],
        found.get("Reason", "None"),
        int(found["Restarts"]),
        _time(found.get("PreemptTime")),
        _time(found.get("StartTime")),
        _time(found.get("EndTime")),
        found.get("Requeue", "1") != "0",
        found.get("BatchFlag", "1") != "0",
        found.get("Partition", ""),
        found.get("Command", "").removesuffix("(null)"),
        {option: found[name] for name, option in _OPTIONS.items() if found.get(name, "(null)") not in _UNSAID},
    )


def requeue(job: Job) -> None:
    """Put the job back into the queue; this process has some seconds left.

    Raises:
        ClusterError: refused, or `Absent`, `Silent`: then nobody knows whether it was done.
    """
    _obeyed(["scontrol", "requeue", job.id])


def submit(arguments: Sequence[str], script: str = "") -> str:
    """Submit a batch script, named by the arguments or given as text; the new job's id.

    The new job does not inherit what Slurm told us about our own.

    Raises:
        ClusterError: refused, with Slurm's words.
    """
    ours = {name: value for name, value in os.environ.items() if not _says_of_a_job(name)}
    out = _obeyed(["sbatch", "--parsable", *arguments], text=script, environment=ours).out
    number = out.strip().splitlines()[-1].split(";")[0] if out.strip() else ""  # id;cluster
    if not number.isdecimal():
        raise ClusterError(f"sbatch answered {out.strip()!r}, which is no job id")
    return number


def cancel(ids: Sequence[str]) -> None:
    """End jobs, or tasks of an array that have not begun.

    Raises:
        ClusterError: refused, with Slurm's words.
    """
    _obeyed(["scancel", *ids])


def kills_its_step(command: Sequence[str], number: int) -> bool:
    """Whether this signal makes `srun` kill what it has started, or ask for another one, instead of handing it on."""
    return os.path.basename(command[0]) == "srun" and number not in (signal.SIGUSR1, signal.SIGUSR2)


def signal_to_steps(job: Job, number: int) -> list[str]:
    """The command that sends a signal to all tasks of the steps of the job that we are in, and not to its batch shell."""
    return ["scancel", f"--signal={signal.Signals(number).name.removeprefix('SIG')}", job.id]


def batch_script(job: Job) -> str:
    """The script that was submitted.

    Raises:
        ClusterError: there is none, or it is not ours to see.
    """
    return _obeyed(["scontrol", "write", "batch_script", job.id, "-"]).out


def kill_wait_s() -> float:
    """Seconds between SIGTERM and SIGKILL.

    Raises:
        ClusterError: Slurm does not say.
    """
    return read_kill_wait(_obeyed(KILL_WAIT).out)


def grace_s(partition: str) -> float:
    """Seconds that a preempted job of this partition has before SIGTERM.

    Raises:
        ClusterError: Slurm does not say.
    """
    return read_grace(_obeyed(grace_of(partition)).out)


def grace_of(partition: str) -> tuple[str, ...]:
    """The question to which `read_grace` reads the answer."""
    return ("scontrol", "show", "partition", partition)


def read_grace(text: str) -> float:
    return _number(r"\bGraceTime=(\d+)", text, "GraceTime")


KILL_WAIT = ("scontrol", "show", "config")


def read_kill_wait(text: str) -> float:
    """KillWait in what `KILL_WAIT` answers."""
    return _number(r"^KillWait\s*=\s*(\d+)", text, "KillWait")


def config() -> dict[str, str]:
    """Slurm's settings, under its own names.

    Raises:
        ClusterError: it does not say.
    """
    return dict(re.findall(r"^(\w+)\s*= ?(.*?)\s*$", _obeyed(KILL_WAIT).out, re.MULTILINE))


def partitions() -> dict[str, dict[str, str]]:
    """The settings of each partition, under Slurm's own names.

    Raises:
        ClusterError: it does not say.
    """
    records = _obeyed(["scontrol", "show", "partition", "--all"]).out.split("\n\n")
    found = [dict(re.findall(r"(\w+)=(\S*)", record)) for record in records]
    return {facts["PartitionName"]: facts for facts in found if "PartitionName" in facts}


def left_s(job: Job) -> float:
    """Seconds until Slurm ends the job; infinity when it has no limit.

    Raises:
        ClusterError: squeue failed, or was silent.
    """
    return read_left(_asked(_left(job)))


def asking_left(job: Job) -> Asked:
    """As `left_s`, without waiting: `read_left` reads the answer."""
    return Asked(_left(job))


def read_left(answer: CommandResult) -> float:
    """Seconds in what `squeue -o %L` says: D-HH:MM:SS, MM:SS, UNLIMITED.

    Raises:
        ClusterError: it says something else: the job is not running, or it cannot tell.
    """
    text = answer.out.strip()
    if text == "UNLIMITED":
        return float("inf")
    found = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", text)
    if answer.code or found is None:
        raise ClusterError(f"squeue says of the time left: {text or answer.err.strip() or 'nothing'}")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def lead_s(script: str) -> dict[str, float]:
    """Which signals the script asks for, and how many seconds before the end: {"SIGUSR1": 120.0}."""
    leads = {}
    for name, seconds in re.findall(
        r"^#SBATCH\s.*?--signal[= ][\"']?(?:[RB]+:)?(\w+)(?:@(\d+))?", script, re.MULTILINE
    ):
        known = {"10": "SIGUSR1", "12": "SIGUSR2", "15": "SIGTERM", "2": "SIGINT"}.get(name, name.upper())
        leads[known if known.startswith("SIG") else f"SIG{known}"] = float(seconds or 60)
    return leads


def _left(job: Job) -> list[str]:
    return ["squeue", "--noheader", "--jobs", job.id, "--format", "%L"]


def _asked(command: Sequence[str], **options: object) -> CommandResult:
    answer = ask(command, **options)  # type: ignore[arg-type]
    if answer.code and _AWAY.search(answer.err):
        raise Silent(f"{command[0]}: {_words(answer)}")
    return answer


def _obeyed(command: Sequence[str], **options: object) -> CommandResult:
    answer = _asked(command, **options)
    if answer.code:
        raise ClusterError(f"{' '.join(command[:2])}: {_words(answer)}")
    return answer


def _words(answer: CommandResult) -> str:
    """Slurm's own words, on one line."""
    lines = (answer.err.strip() or answer.out.strip()).splitlines()
    said = "; ".join(" ".join(re.sub(r"^\w+: (error|fatal): ", "", line).split()) for line in lines if line.strip())
    return said[:500] or f"exit code {answer.code} and no word"


def _says_of_a_job(name: str) -> bool:
    return name.startswith(("SLURM_", "SLURMD_", "HOLDFAST_SUPERVISOR")) and name != "SLURM_CONF"


def _number(pattern: str, text: str, what: str) -> float:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ClusterError(f"scontrol does not say {what}")
    return float(found[1])


def _time(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() else None
