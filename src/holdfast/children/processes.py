"""Processes: what Linux's /proc says of them. Reads, and touches nobody. Source: proc(5)."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    parent: int
    group: int


def descendants(ancestor: int) -> list[int]:
    """Children of `ancestor`, their children, and so on; each after its parent."""
    return [pid for pid, _ in _born(ancestor)]


def workers(ancestor: int, variable: str) -> list[int]:
    """Its descendants that were started with that environment variable, by a process that was not."""
    found = {pid: parent for pid, parent in _born(ancestor) if _was_given(pid, variable)}
    return [pid for pid, parent in found.items() if parent not in found]


def members(group: int) -> list[int]:
    """The processes of a group."""
    return [process.pid for process in _all() if process.group == group]


def catch(pids: Iterable[int], number: int) -> bool:
    """Whether one of the processes has a handler of its own for the signal."""
    return any(_has(pid, "SigCgt", number) for pid in pids)


def heed(pids: Iterable[int], number: int) -> bool:
    """Whether one of the processes does not ignore the signal: who had it, and is still there, is at work on it."""
    return any(not _has(pid, "SigIgn", number) for pid in pids)


def writes(pids: Collection[int], files: Collection[Path]) -> bool:
    """Whether one of the processes has one of the files open for writing."""
    wanted = {(facts.st_dev, facts.st_ino) for path in files if (facts := _facts(path)) is not None}
    return any(_writes(pid, wanted) for pid in pids)


def _born(ancestor: int) -> list[tuple[int, int]]:
    """The descendants, each with its parent."""
    children = defaultdict(list)
    for process in _all():
        children[process.parent].append(process.pid)
    found: list[tuple[int, int]] = []
    waiting = [ancestor]
    while waiting:
        parent = waiting.pop()
        born = children.pop(parent, [])
        found += [(pid, parent) for pid in born]
        waiting += born
    return found


def _was_given(pid: int, variable: str) -> bool:
    try:
        given = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it is over, or somebody else's
        return False
    return any(each.startswith(f"{variable}=".encode()) for each in given)


def _all() -> Iterator[Process]:
    """None where there is no /proc: then only the command's group is looked after."""
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            try:
                text = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it is over
                continue
            _, parent, group = text[text.rindex(")") + 2 :].split()[:3]  # the name before it may hold anything
            yield Process(int(name), int(parent), int(group))


def _has(pid: int, mask: str, number: int) -> bool:
    """Whether the signal is in that mask of the process; a process that is over has none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    found = next((int(line.split()[1], 16) for line in lines if line.startswith(f"{mask}:")), 0)
    return bool(found >> (number - 1) & 1)


def _writes(pid: int, wanted: Collection[tuple[int, int]]) -> bool:
    try:
        opened = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(_wanted(pid, number, wanted) for number in opened)


def _wanted(pid: int, number: str, wanted: Collection[tuple[int, int]]) -> bool:
    facts = _facts(Path(f"/proc/{pid}/fd/{number}"))
    if facts is None or (facts.st_dev, facts.st_ino) not in wanted:
        return False
    try:
        lines = Path(f"/proc/{pid}/fdinfo/{number}").read_text().splitlines()
    except OSError:
        return False
    flags = next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), os.O_RDONLY)
    return flags & os.O_ACCMODE != os.O_RDONLY


def _facts(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None
