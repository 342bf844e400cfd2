"""Owner: which process runs an attempt, and the evidence that it has ended. Sources: /proc,
Slurm's environment.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .job import job as job_here

Facts = Mapping[str, Any]

_DEAD_STATES = ("Z", "X", "x")  # proc(5): a zombie does not run any more


def describe_this_process() -> dict[str, Any]:
    """Return facts that identify this process to others: host, boot, pid and its start, pid
    namespace, user, Slurm job.

    The environment is never included as a whole; the job's ids are read one by one.
    """
    pid = os.getpid()
    return {
        "host": platform.node(),
        "machine": _text("/etc/machine-id"),
        "hardware": f"{uuid.getnode():012x}",
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "pid": pid,
        "pid_started": (_process(pid) or ("", ""))[1],
        "pid_space": _pid_namespace(),
        "user": _user(),
        "job": _job(),
    }


def describe_process(pid: int) -> dict[str, Any]:
    """Return facts that distinguish a process of this machine from every other one,
    in other boots, too.
    """
    boot, started = _text("/proc/sys/kernel/random/boot_id"), (_process(pid) or ("", ""))[1]
    return {"boot": boot, "pid_space": _pid_namespace(), "pid": pid, "pid_started": started}


def parent_pid(pid: int) -> int | None:
    """Return the pid of a process's parent while the process is alive. Source: proc(5), field 4."""
    text = _text(f"/proc/{pid}/stat")
    return int(text[text.rindex(")") + 2 :].split()[1]) if text else None


def age_s() -> float:
    """Return for how long this process has run; 0.0 if the system does not report it. Source:
    proc(5), field 22.
    """
    found = _process(os.getpid())
    if found is None:
        return 0.0
    return max(
        0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(found[1]) / os.sysconf("SC_CLK_TCK")
    )


def proven_gone(owner: Facts, last_seen: Callable[[], float]) -> bool:
    """Whether it is certain that the owner has ended.

    In the same boot and pid namespace: no process has its pid *and* start time. On the same machine
    (name, id and network hardware agree): this is a later boot, which began after the owner's last
    sign of life. `last_seen` gives that time, in Unix seconds. Other evidence is not sufficient.
    """
    here = describe_this_process()
    if owner.get("boot") and owner.get("boot") == here["boot"]:
        if owner.get("pid_space") != here["pid_space"]:
            return False
        found = _process(owner.get("pid"))
        if found is None:
            return not _is_hidden(owner.get("pid"))
        return found[1] != owner.get("pid_started") or found[0] in _DEAD_STATES
    same_machine = all(
        here[fact] and owner.get(fact) == here[fact] for fact in ("host", "machine", "hardware")
    )
    return same_machine and bool(owner.get("boot")) and _boot_time() > last_seen()


def is_me(owner: Facts) -> bool:
    here = describe_this_process()
    return all(
        owner.get(fact) == here[fact]
        for fact in ("host", "boot", "pid", "pid_started", "pid_space")
    )


def is_earlier_start(owner: Facts) -> bool:
    """Return whether the owner is an earlier start of this same Slurm job (and array task)."""
    mine, other = _job(), owner.get("job")
    if mine is None or not isinstance(other, Mapping):
        return False
    same = (other.get("id"), other.get("array_task")) == (mine["id"], mine["array_task"])
    before = other.get("restart_count")
    return same and isinstance(before, int) and before < mine["restart_count"]


def job_of(owner: Facts) -> tuple[str | None, int]:
    """Return the owner's job, as the scheduler's commands take it,
    and how often it had been started before.
    """
    job = owner.get("job")
    if not isinstance(job, Mapping) or not job.get("id"):
        return None, 0
    task, restart = job.get("array_task"), job.get("restart_count")
    return f"{job['id']}_{task}" if task else str(job["id"]), restart if isinstance(
        restart, int
    ) else 0


def describe(owner: Facts) -> str:
    """Describe the owner in a few words, for messages."""
    job = owner.get("job")
    of_job = f", job {job.get('id')}" if isinstance(job, Mapping) else ""
    suspended = ", suspended by Ctrl-Z: fg in its shell continues it" if is_suspended(owner) else ""
    return (
        f"pid {owner.get('pid', '?')} on {owner.get('host', '?')}, "
        f"user {owner.get('user', '?')}{of_job}{suspended}"
    )


def is_suspended(owner: Facts) -> bool:
    """Whether the owner is a process of this machine that a signal has stopped."""
    process = _process(owner.get("pid")) if owner.get("host") == platform.node() else None
    return process is not None and process[0] == "T" and process[1] == owner.get("pid_started")


def _job() -> dict[str, Any] | None:
    job = job_here()
    if job is None:
        return None
    known = {"id": job.array or job.id, "array_task": job.task, "restart_count": job.restart_count}
    cluster = os.environ.get("SLURM_CLUSTER_NAME")
    return known | {"cluster": cluster} if cluster else known


def _process(pid: object) -> tuple[str, str] | None:
    """Return the state and start time (in clock ticks since boot) of a process.
    Source: proc(5), fields 3 and 22.
    """
    if not isinstance(pid, int):  # from a journal that another program may have written
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the name before it may contain spaces and brackets
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], fields[19]


def _is_hidden(pid: object) -> bool:
    """Return whether a process has this pid although /proc does not show it: with hidepid /proc
    shows only the user's own.
    """
    try:
        return isinstance(pid, int) and pid > 0 and os.getpgid(pid) >= 0
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _boot_time() -> float:
    for line in _text("/proc/stat").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, in a container
        return str(os.getuid())
