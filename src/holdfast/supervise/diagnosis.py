"""Diagnosis: gathers the evidence around each start of the command,
and names the cause of its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import causes
from .causes import Error, Evidence
from .evidence import MemoryKills, is_full
from .witness import Said


class Diagnosis:
    """Begun before each start,
    shown the command's processes while it runs, and asked after its end.
    """

    def __init__(self) -> None:
        self._before = Error("")  # of the last start, if that failed
        self._memory: MemoryKills | None = None

    def begin(self) -> None:
        """Count from now on what the kernel kills."""
        self.close()
        self._memory = MemoryKills()

    def look(self, pids: Sequence[int]) -> None:
        """Note the processes that now belong to the command."""
        if self._memory is not None:
            self._memory.look(pids)

    def cause(self, code: int, tail: str, said: Said, places: Sequence[Path]) -> str:
        """Return why a start failed. `places`: where it writes."""
        kills, own = self._memory.found() if self._memory is not None else (0, 0)
        error = said.error if said.error.kind else causes.from_output(tail)
        before, self._before = self._before, error
        full, broken = (
            any(map(is_full, [Path(), *places])),
            causes.breaks_the_gpu(f"{tail}\n{error.text}"),
        )
        return causes.cause(Evidence(code, error, before, kills, own, full, broken))

    def forget(self) -> str:
        """Forget the last error: the start after it did not fail. Return its cause: none."""
        self._before = Error("")
        return ""

    def close(self) -> None:
        """Stop counting."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
