"""Processes, as Linux's /proc shows them. Reads only. Source: proc(5)."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    parent: int
    group: int


def descendants(ancestor: int) -> list[int]:
    """Return the children of `ancestor`, their children, and so on; each after its parent."""
    return [pid for pid, _ in _descendants_with_parents(ancestor)]


def rank_workers(ancestor: int) -> list[int]:
    """Return the descendants that were started with RANK in their environment, by a process
    without it.
    """
    found = {
        pid: parent
        for pid, parent in _descendants_with_parents(ancestor)
        if "\0RANK=" in "\0" + _read(f"{pid}/environ")
    }
    return [pid for pid, parent in found.items() if parent not in found]


def group_members(group: int) -> list[int]:
    """Return the processes of a group."""
    return [process.pid for process in _all_processes() if process.group == group]


def any_catches_signal(pids: Iterable[int], number: int) -> bool:
    """Whether one of the processes has installed a handler for the signal."""
    return any(_is_in_signal_mask(pid, "SigCgt", number) for pid in pids)


def any_handles_signal(pids: Iterable[int], number: int) -> bool:
    """Whether one of the processes does not ignore the signal. If it received it and still
    runs, it handles it.
    """
    return any(not _is_in_signal_mask(pid, "SigIgn", number) for pid in pids)


def has_disposition_for(pid: int, number: int) -> bool:
    """Whether the process catches, ignores or blocks the signal."""
    return any(_is_in_signal_mask(pid, mask, number) for mask in ("SigCgt", "SigIgn", "SigBlk"))


def is_traced(pid: int) -> bool:
    """Whether a debugger holds the process."""
    return bool(_field(f"{pid}/status", "TracerPid", 10))


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    return _field_text(f"{pid}/status", "State") not in {"", "Z", "X"}


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process."""
    return _field_text(f"{pid}/status", "State") == "T"


def has_mapped(pid: int, name: str) -> bool:
    """Whether the process has memory or a file of that name in its address space."""
    return name in _read(f"{pid}/maps")


def program_path(pid: int) -> str:
    """Return the path of the program that the process runs; "" if it is not known."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def command_line(pid: int) -> list[str]:
    """Return the words with which the process was started."""
    return _read(f"{pid}/cmdline").split("\0")[:-1]


def describe_process(pid: int) -> str:
    """Return for people what the process does: its state,
    and where in the kernel each thread waits.
    """
    lines = [f"state: {_field_text(f'{pid}/status', 'State')}"]
    for thread in sorted(_list_directory(f"/proc/{pid}/task"), key=int):
        where = " < ".join(
            line.split()[-1] for line in _read(f"{pid}/task/{thread}/stack").splitlines()
        )
        lines.append(
            f"thread {thread}: {_read(f'{pid}/task/{thread}/comm').strip()}: "
            f"{where or kernel_function_of(pid, thread)}"
        )
    return "\n".join(lines)


def kernel_function_of(pid: int, thread: int | str = "") -> str:
    """Return the name of the kernel's function in which a thread waits; "" if it runs, or the
    kernel does not say.
    """
    found = _read(f"{pid}/task/{thread or pid}/wchan")
    return "" if found == "0" else found


def any_writes(pids: Collection[int], files: Collection[Path]) -> bool:
    """Whether one of the processes has one of the files open for writing."""
    wanted = {found for path in files if (found := _identity(path))}
    return any(
        _is_written_file(pid, number, wanted)
        for pid in pids
        for number in _list_directory(f"/proc/{pid}/fd")
    )


def _descendants_with_parents(ancestor: int) -> list[tuple[int, int]]:
    """Return the descendants, each with its parent."""
    children = defaultdict(list)
    for process in _all_processes():
        children[process.parent].append(process.pid)
    found: list[tuple[int, int]] = []
    waiting = [ancestor]
    while waiting:
        parent = waiting.pop()
        born = children.pop(parent, [])
        found += [(pid, parent) for pid in born]
        waiting += born
    return found


def _all_processes() -> Iterator[Process]:
    """Yield all processes; none if there is no /proc: then only the command's group is tracked."""
    for name in _list_directory("/proc"):
        if name.isdecimal() and (text := _read(f"{name}/stat")):
            # the name before it may contain any text
            _, parent, group = text[text.rindex(")") + 2 :].split()[:3]
            yield Process(int(name), int(parent), int(group))


def _is_in_signal_mask(pid: int, mask: str, number: int) -> bool:
    """Whether the signal is in that mask of the process."""
    return bool(_field(f"{pid}/status", mask, 16) >> (number - 1) & 1)


def _is_written_file(pid: int, number: str, wanted: Collection[tuple[int, int]]) -> bool:
    if _identity(f"/proc/{pid}/fd/{number}") not in wanted:
        return False
    return _field(f"{pid}/fdinfo/{number}", "flags", 8) & os.O_ACCMODE != os.O_RDONLY


def _field(path: str, name: str, base: int) -> int:
    """Return the number in the line `name: 17` of a file in /proc; 0 without such a line."""
    return int(_field_text(path, name) or "0", base)


def _field_text(path: str, name: str) -> str:
    found = re.search(rf"^{name}:\s*(\w+)", _read(path), re.MULTILINE)
    return found[1] if found else ""


def _read(path: str) -> str:
    """Return the text of a file in /proc;
    empty if its process has ended, or belongs to another user.
    """
    try:
        return Path("/proc", path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _list_directory(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _identity(path: str | Path) -> tuple[int, int] | None:
    """Return the file's device and inode; None if there is no such file."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
