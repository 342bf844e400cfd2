"""Missing: for which rank the others wait,
and other evidence about a hang from /proc. Pure except for `find_blocker`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..children import processes
from ..children.steps import OVER, SlotView
from .output import Output
from .stacks import is_in_collective


def missing_ranks(seen: Sequence[SlotView], stacks: Mapping[int, str]) -> list[SlotView]:
    """Return the ranks for which the others wait: those behind, else those outside any collective.

    None if that does not distinguish them. The other ranks may be on other nodes.
    """
    here = sorted(
        (each for each in seen if each.phase != OVER), key=lambda each: (each.step, each.rank)
    )
    world = max((each.world for each in here), default=1)
    if world == 1:
        return []
    behind = [each for each in here if each.step < here[-1].step]
    behind = behind or [
        each for each in here if is_in_collective(stacks.get(each.pid, "")) is False
    ]
    return behind if len(behind) < world else []


def describe_missing(missed: Sequence[SlotView], seen: Sequence[SlotView]) -> str:
    """Return a sentence about the ranks."""
    world = max((each.world for each in seen), default=1)
    if world == 1:
        return ""
    if missed:
        names = ", ".join(
            f"{each.rank} (pid {each.pid}, after step {each.step})" for each in missed
        )
        return f"of {world} ranks, the others wait for {names}"
    if len(seen) < world:
        here = _list_ranks([each.rank for each in seen])
        return f"of {world} ranks, all that this node has wait: {here}"
    return f"all {world} ranks wait"


def _list_ranks(numbers: Sequence[int]) -> str:
    first, last = min(numbers), max(numbers)
    whole = len(numbers) > 2 and sorted(numbers) == [*range(first, last + 1)]
    return f"{first} to {last}" if whole else ", ".join(map(str, sorted(numbers)))


def find_blocker(pids: Sequence[int], output: Output) -> str:
    """Return what blocks the command, if the system shows it."""
    stopped = [pid for pid in pids if processes.is_stopped(pid)]
    if stopped:
        return f"process {stopped[0]} was stopped by a signal (kill -CONT {stopped[0]})"
    if output.is_reader_blocked:
        return "its output is full: nobody reads what `holdfast run` prints"
    full = [pid for pid in pids if "pipe_write" in processes.kernel_function_of(pid)]
    if full:
        return f"process {full[0]} waits to write into a pipe that nobody reads"
    return ""
