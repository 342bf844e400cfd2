"""The terminal: lines that report what Holdfast did,
and a progress line. Nothing here raises into a training loop.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Self, TextIO

from .legible import printable

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_S = 0.2
ERASE = "\r\x1b[2K"
BAR_COLUMNS = 24


_rank = 0


def set_rank(rank: int) -> None:
    """Set the rank used in messages. Ranks above 0 print only warnings, with their number."""
    global _rank  # noqa: PLW0603  of a process, as stderr is
    _rank = rank


def say(line: str) -> None:
    """Write `holdfast: <line>` to stderr.
    Does nothing when stderr is closed, and on ranks above 0.
    """
    if _rank == 0:
        _write(sys.stderr, f"holdfast: {printable(line)}\n")


def warn(line: str) -> None:
    """Write `line` as a warning."""
    where = f"rank {_rank}: " if _rank else ""
    _write(sys.stderr, f"holdfast: {where}warning: {printable(line)}\n")


def tell(line: str) -> None:
    """Write the line to stdout, among the program's own. Does nothing when stdout is closed."""
    _write(sys.stdout, f"{line}\n")


def mark(line: str) -> None:
    """Write to the process's original stdout,
    even if sys.stdout was replaced, after everything printed so far.
    """
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
    _write(sys.__stdout__, line)


def flush() -> None:
    """Write what stdout and stderr still buffer: the interpreter will not."""
    _write(sys.stdout, "")
    _write(sys.stderr, "")


def relay(number: int, data: bytes) -> bool:
    """Write another process's output, byte for byte,
    to our descriptor 1 or 2; False when its reader is gone.
    """
    stream = sys.stdout if number == 1 else sys.stderr
    raw = getattr(stream.buffer, "raw", stream.buffer)  # past Python's own buffer, if it has one
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[raw.write(rest) or 0 :]
    except (OSError, ValueError):
        return False
    return True


class ProgressLine:
    """A progress line at the bottom of the terminal; silent when stderr is not one, in CI, and in a
    notebook.

    The line has no thread and hides no cursor: a process killed at any instant leaves the terminal
    usable, and a worker forked at any instant inherits no lock. It is wiped before anything is
    written through `sys.stdout` or `sys.stderr`, and not drawn while such a write has left a line
    unfinished.
    """

    def __init__(self) -> None:
        self._console: Console | None = None
        self._facts: dict[str, Any] = {"metrics": {}}
        self._drawn_at = -REFRESH_S
        self._drawn = False
        self._unfinished = False  # the program's own last write ended without a newline
        self._wiping: dict[str, _Wiping] = {}  # replacements of sys.stdout and sys.stderr

    def __enter__(self) -> Self:
        if _is_enabled(sys.stderr):
            from rich.console import Console

            self._console = Console(file=sys.stderr, force_terminal=True)
            terminals = {
                name: stream
                for name in ("stdout", "stderr")
                if _is_terminal(stream := getattr(sys, name))
            }
            self._wiping = {name: _Wiping(stream, self) for name, stream in terminals.items()}
            vars(sys).update(self._wiping)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, *, metrics: Mapping[str, float] | None = None, **position: int | None) -> None:
        """Note the given values and draw them, at most five times a second.

        Names: step, total, epoch (from 0), epochs.
        """
        if self._console is None:
            return
        self._facts.update({name: value for name, value in position.items() if value is not None})
        self._facts["metrics"].update(metrics or {})
        now = time.monotonic()
        if now - self._drawn_at >= REFRESH_S:
            self._drawn_at = now
            line = _line(self._console, self._facts)
            if not self._unfinished:
                _write(self._console.file, f"{ERASE}{line}\r")
                self._drawn = True

    def wipe_before(self, text: str) -> None:
        """Wipe the line, since the program is about to write `text`."""
        if self._drawn and self._console is not None:
            _write(self._console.file, ERASE)
            self._drawn = False
        self._unfinished = not text.endswith("\n")

    def close(self) -> None:
        """Wipe the line and restore the streams. A second call does nothing."""
        self.wipe_before("\n")
        for name, stream in self._wiping.items():
            # otherwise other code has replaced it since, and restores it
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.stream)
        self._wiping, self._console = {}, None


class _Wiping:
    """Replaces sys.stdout or sys.stderr:
    wipes the progress line before the program's own output.
    """

    def __init__(self, stream: TextIO, progress: ProgressLine) -> None:
        self.stream = stream
        self._progress = progress

    def write(self, text: str) -> int:
        if text:
            self._progress.wipe_before(text)
        return self.stream.write(text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _is_enabled(stream: TextIO | None) -> bool:
    draws = os.environ.get("TERM", "dumb") not in {"dumb", "unknown"}
    return draws and not os.environ.get("CI") and _is_terminal(stream)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def _write(stream: IO[str] | None, text: str) -> None:
    if stream is not None:
        # closed, hung up, or of an encoding that lacks the character
        with suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()


def _line(console: Console, facts: Mapping[str, Any]) -> str:
    """Return `facts` as one line, cut to the terminal's width, with colours where it has them."""
    from rich.text import Text

    cells = [Text(f"{printable(name)} {value:.4g}") for name, value in facts["metrics"].items()]
    if facts.get("total") and "step" in facts:
        done = min(BAR_COLUMNS, BAR_COLUMNS * facts["step"] // facts["total"])
        cells.insert(0, Text.assemble(("━" * done, "green"), ("━" * (BAR_COLUMNS - done), "dim")))
    if "step" in facts:
        cells.insert(
            0, Text(f"step {facts['step']}" + (f"/{facts['total']}" if "total" in facts else ""))
        )
    if "epoch" in facts:
        cells.insert(
            0,
            Text(
                f"epoch {facts['epoch'] + 1}" + (f"/{facts['epochs']}" if "epochs" in facts else "")
            ),
        )
    line = Text("  ").join(cells)
    line.truncate(max(console.width - 1, 1), overflow="ellipsis")  # the last column would wrap
    with console.capture() as captured:
        console.print(line, end="")
    return captured.get()
