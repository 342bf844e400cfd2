"""Diagnosis: gathers the evidence around each start of the command,
and names the cause of its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import causes
from .causes import EndEvidence, StartError
from .evidence import OutOfMemoryKills, is_disk_full
from .witness import RunOutcome


class FailureDiagnosis:
    """Collects evidence while the command runs, and names the cause after it has failed."""

    def __init__(self) -> None:
        self._before = StartError("")  # of the last start, if that failed
        self._memory: OutOfMemoryKills | None = None

    def start_counting(self) -> None:
        """Count the processes that the kernel kills from now on."""
        self.close()
        self._memory = OutOfMemoryKills()

    def note_processes(self, pids: Sequence[int]) -> None:
        """Note which processes now belong to the command."""
        if self._memory is not None:
            self._memory.note_processes(pids)

    def find_cause(self, code: int, tail: str, said: RunOutcome, places: Sequence[Path]) -> str:
        """Return why a start failed. `places`: where it writes."""
        kills, own = self._memory.count_kills() if self._memory is not None else (0, 0)
        error = said.error if said.error.kind else causes.parse_error(tail)
        before, self._before = self._before, error
        full, broken = (
            any(map(is_disk_full, [Path(), *places])),
            causes.reports_broken_gpu(f"{tail}\n{error.text}"),
        )
        return causes.find_cause(EndEvidence(code, error, before, kills, own, full, broken))

    def forget_error(self) -> str:
        """Forget the last error, because the start after it did not fail. Return its cause:
        none.
        """
        self._before = StartError("")
        return ""

    def close(self) -> None:
        """Stop counting."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
