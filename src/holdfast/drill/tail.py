"""Tail: the end of what a command has printed, without what its launcher says of its workers' end."""

from __future__ import annotations

import re

LINES = 20
_LOGGED = re.compile(r"[WEI]\d{4} [\d:.]+ +\d+ .*\btorch/distributed/(elastic|run)\b")
_BEGIN, _RAISED = (
    "Traceback (most recent call last):",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
)
_FIRST = re.compile(r"Root Cause.*?rank +: (\d+) .*?exitcode +: (-?\d+)", re.DOTALL)


def shown(printed: str) -> list[str]:
    """Its last lines. torchrun closes with some fifty of its own, which say no more than who was the first to end."""
    lines = [line for line in printed.splitlines() if not _LOGGED.match(line)]
    raised = [number for number, line in enumerate(lines) if line.startswith(_RAISED)]
    if not raised:
        return lines[-LINES:]
    begin = max((number for number in range(raised[-1]) if lines[number] == _BEGIN), default=raised[-1])
    first = _FIRST.search("\n".join(lines[raised[-1] :]))
    said = [f"torchrun: rank {first[1]} was the first to end, with {first[2]}"] if first else []
    return lines[max(0, begin - LINES) : begin] + said
