"""Any command that keeps its own state: exit code 0 means done, 75 means run it again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import Stopped
from .program import ProgramCheckpoint, ProgramExit, Verdict

RUN_ME_AGAIN: int = Stopped("").code  # type: ignore[assignment]  # SystemExit's code may have any type; ours is 75


class AnyCommand:
    """A script that uses `Run`, or any command that exits with 75 when it wants to resume later."""

    def begin(
        self, command: Sequence[str], checkpoint: Path | None, time_left_s: float | None
    ) -> Sequence[str]:
        """Return the command unchanged: it finds its own state."""
        del checkpoint, time_left_s
        return command

    def checkpoint(self) -> ProgramCheckpoint | None:
        """None: it keeps its checkpoints itself."""
        return None

    def stop(self, signal: int, pid: int) -> int:
        """Return the signal unchanged."""
        del pid
        return signal

    def verdict(self, ended: ProgramExit) -> Verdict:
        return {0: "done", RUN_ME_AGAIN: "stopped"}.get(ended.code, "failed")  # type: ignore[return-value]
