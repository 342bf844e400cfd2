"""Evidence: the machine's facts about the end of a start. Reads only.

Sources: cgroups(7) and the kernel's cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst
(memory.oom_control); the kernel's dev-kmsg ABI; proc(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

ROOM_BYTES = 1 << 16  # with less space than this a file system counts as full
_RECORD = 8192  # /dev/kmsg gives one record a read
_VICTIM = re.compile(r"Killed process (\d+) \(")


class OutOfMemoryKills:
    """Counts the processes that the kernel kills for lack of memory, from now on."""

    def __init__(self) -> None:
        self._counts: dict[Path, tuple[int, int]] = {}  # the file -> its count at first, and now
        self._pids: set[int] = set()
        self._log = _open_log()
        self.note_processes([os.getpid()])
        self._pids.clear()

    def note_processes(self, pids: Iterable[int]) -> None:
        """Note the cgroups of these processes of the command, and the processes themselves."""
        for pid in pids:
            self._pids.add(pid)
            for file in _memory_event_files_of(pid):
                self._counts.setdefault(file, 2 * (_read_kill_count(file),))

    def count_kills(self) -> tuple[int, int]:
        """Return the kills in the command's cgroups, and those of them that the kernel's log says
        were its processes.

        The count of a cgroup that is gone is the last one that was seen.
        """
        self._counts = {
            file: (first, max(_read_kill_count(file), now))
            for file, (first, now) in self._counts.items()
        }
        kills = max((now - first for first, now in self._counts.values()), default=0)
        return kills, len(self._pids & set(_killed_processes(self._log)))

    def close(self) -> None:
        """Close the kernel's log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None


def is_disk_full(path: Path) -> bool:
    """Whether the file system has no space, or no inode, left for this user.

    Some file systems report no size, as /proc. A read-only one never counts as full.
    """
    try:
        facts = os.statvfs(path)
    except OSError:
        return False
    if not facts.f_blocks or facts.f_flag & os.ST_RDONLY:
        return False
    return facts.f_bavail * facts.f_frsize < ROOM_BYTES or (
        facts.f_files > 0 and facts.f_favail == 0
    )


def memory_event_files(cgroups: str, mounts: str) -> list[Path]:
    """Return the files that count a process's kills,
    from the texts of its /proc cgroup and mountinfo. Pure.
    """
    found = []
    for line in mounts.splitlines():
        fields, _, (kind, _, options) = _parse_mount_line(line)
        if kind not in {"cgroup", "cgroup2"} or (
            kind == "cgroup" and "memory" not in options.split(",")
        ):
            continue
        root, place = fields[3], Path(fields[4])
        for entry in cgroups.splitlines():
            number, _, rest = entry.partition(":")
            controllers, _, path = rest.partition(":")
            ours = number == "0" if kind == "cgroup2" else "memory" in controllers.split(",")
            if ours and (path == root or path.startswith(root.rstrip("/") + "/")):
                name = "memory.events" if kind == "cgroup2" else "memory.oom_control"
                found.append(place / path[len(root.rstrip("/")) :].lstrip("/") / name)
    return found


def free_and_total_memory() -> tuple[int, int]:
    """Return the free and the total memory in bytes: of the machine, or of the enclosing
    cgroup with the least free.
    """
    facts = _read_numbers(Path("/proc/meminfo"))
    found = [(facts.get("MemAvailable:", 0) << 10, facts.get("MemTotal:", 0) << 10)]
    for file in _memory_event_files_of(os.getpid()):
        for place in file.parents:
            limit, used = _limit_and_use(place)
            if limit is not None and limit < found[0][1]:
                found.append((limit - used, limit))
    return min(found)


def _limit_and_use(cgroup: Path) -> tuple[int | None, int]:
    """Return a cgroup's limit, if it has one,
    and its use; reclaimable page cache does not count.
    """
    facts = _read_numbers(cgroup / "memory.stat")
    forgotten = facts.get("total_inactive_file", facts.get("inactive_file", 0))
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # "max" is no number
            return int((cgroup / limit).read_text()), int((cgroup / used).read_text()) - forgotten
    return None, 0


def _read_numbers(file: Path) -> dict[str, int]:
    with suppress(OSError):
        lines = (line.split() for line in file.read_text().splitlines())
        return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}
    return {}


def _parse_mount_line(line: str) -> tuple[list[str], str, tuple[str, str, str]]:
    left, mark, right = line.partition(" - ")
    kind, source, options = (right.split() + 3 * [""])[:3]
    return left.split(), mark, (kind, source, options)


def _memory_event_files_of(pid: int) -> list[Path]:
    with suppress(OSError):
        return memory_event_files(
            Path(f"/proc/{pid}/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()
        )
    return []


def _read_kill_count(file: Path) -> int:
    with suppress(OSError, ValueError):
        found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def _open_log() -> int | None:
    """Open the kernel's log at its present end; None if it may not be read."""
    with suppress(OSError):
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(log, 0, os.SEEK_END)
        return log
    return None


def _killed_processes(log: int | None) -> list[int]:
    """Return the processes that the kernel has killed since the last call,
    by their number on this machine.
    """
    found: list[int] = []
    while log is not None:
        try:
            text = os.read(log, _RECORD).decode(errors="replace")
        except BrokenPipeError:  # records were overwritten before they were read
            continue
        except OSError:
            break
        found += [int(number) for number in _VICTIM.findall(text)]
    return found
