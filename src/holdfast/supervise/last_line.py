"""Last line: what happened, for the end of a job's output. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .. import journal
from ..apps.command import RUN_ME_AGAIN
from ..inspect import starts
from . import judge
from .judge import CommandAttempt
from .keep import ProgramStore


def format_last_line(kept: ProgramStore | None, run: Path | None, supervisor: Path) -> str:
    """Return how far the command came, and after how many starts. `supervisor`: our journal."""
    words = kept.describe_kept() if kept is not None else ""
    found: list[starts.ProgramStart] = []
    with suppress(OSError):  # without the journals the line is shorter
        events = journal.read(supervisor)
        found = (
            starts.starts_of_run(journal.logs(run), events)
            if run is not None
            else starts.starts_of_command(events)
        )
    at = f" at step {found[-1].last:,}" if run is not None and found and found[-1].last else ""
    return f"done{at} after {starts.summarize(found)}{words}" if found else f"done{words}"


def format_stop_message(
    attempts: Sequence[CommandAttempt], reason: str, code: int, held: Path | None
) -> str:
    """Return the message on how the command stopped and what to do.
    `held`: the directory that is on hold.
    """
    if not attempts:
        return f"stopped by {reason} before it was started; run me again"
    last = attempts[-1]
    if code != RUN_ME_AGAIN:
        return f"stopped by {reason}: {judge.describe_exit_code(last.code)}"
    if reason == judge.HELD:
        return f"stopped, and on hold: `holdfast release {held}`, then run me again"
    otherwise = "" if last.verdict == "stopped" else f" ({judge.describe_exit_code(last.code)})"
    return f"stopped by {reason}{otherwise}; run me again"
