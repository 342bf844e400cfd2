"""The terminal: lines that report what Holdfast did, through the logger "holdfast", and a progress
line. Nothing here raises into a training loop.

    logging.getLogger("holdfast").setLevel(logging.ERROR)  # silence
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import IO, TYPE_CHECKING, Any, Self, TextIO

from . import disk
from .legible import duration, nth, printable

if TYPE_CHECKING:
    import logging

    from rich.console import Console

REFRESH_S = 0.2
LOG_S = 600.0  # between two lines of progress where no terminal is
ERASE = "\r\x1b[2K"
BAR_COLUMNS = 10
PACE_DRAWN = 50  # how many draws the pace is measured over

INFO = 20  # of logging
_rank = 0


@cache
def _logger() -> logging.Logger:
    """Return the logger "holdfast". Without a handler of anybody's it gets ours, which writes to
    what sys.stderr is then, and hands nothing to the root logger.
    """
    import logging  # no import of Holdfast needs it

    class ToStderr(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            rank, warning = getattr(record, "rank", 0), record.levelno >= logging.WARNING
            where = f"rank {rank}: " if rank else ""
            line = f"{where}{'warning: ' if warning else ''}{record.getMessage()}"
            _write(sys.stderr, f"holdfast: {line}\n")

    logger = logging.getLogger("holdfast")
    if not logger.handlers:
        logger.addHandler(ToStderr())
        logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING if os.environ.get("HOLDFAST_QUIET") else logging.INFO)
    return logger


def set_rank(rank: int) -> None:
    """Set the rank used in messages. Ranks above 0 print only warnings, with their number."""
    global _rank  # noqa: PLW0603  of a process, as stderr is
    _rank = rank


def say(line: str) -> None:
    """Log `line`, by default as `holdfast: <line>` to stderr. Does nothing on ranks above 0."""
    if _rank == 0:
        _logger().info("%s", printable(line))


def warn(line: str) -> None:
    """Log `line` as a warning, with the rank's number."""
    _logger().warning("%s", printable(line), extra={"rank": _rank})


def answer(line: str) -> None:
    """Write `holdfast: <line>` to stderr past all buffers: for a signal handler, which may have
    interrupted a write to the same stream. Does nothing on ranks above 0.
    """
    if _rank or not _logger().isEnabledFor(INFO):
        return
    if type(sys.stderr).__module__.startswith("ipykernel"):
        say(line)  # its descriptor 2 is the server's terminal
    else:
        with suppress(OSError, ValueError, AttributeError):
            number = sys.stderr.fileno()
            begin = ERASE if os.isatty(number) else ""
            os.write(number, f"{begin}holdfast: {printable(line)}\n".encode())


def log_line(line: str) -> None:
    """Log `line` where no progress line shows the same."""
    if not (isinstance(sys.stderr, _Terminal) and sys.stderr.progress.is_drawn):
        say(line)


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
    """A progress line at the bottom of the terminal, or under a notebook's cell. Where neither is,
    one line every ten minutes.

    The line has no thread and hides no cursor: a process killed at any instant leaves the terminal
    usable, and a worker forked at any instant inherits no lock. It is wiped before anything is
    written through `sys.stdout` or `sys.stderr`, and not drawn while such a write has left a line
    unfinished.
    """

    def __init__(self) -> None:
        self._console: Console | None = None
        self._cell: Any = None  # IPython's handle of the line under a cell
        self._facts: dict[str, Any] = {"metrics": {}}
        self._drawn_at = -REFRESH_S
        self._logged_at = time.monotonic()
        self._passed: deque[tuple[float, int]] = deque(maxlen=PACE_DRAWN)  # when, how many passes
        self._drawn = False
        self._unfinished = False  # the program's own last write ended without a newline
        self._terminals: dict[str, _Terminal] = {}  # replacements of sys.stdout and sys.stderr

    def __enter__(self) -> Self:
        return self.begin(draws=True)

    def begin(self, *, draws: bool) -> Self:
        """Enter it; without `draws` only for what a closed terminal needs."""
        if draws and _is_enabled(sys.stderr):
            from rich.console import Console

            self._console = Console(file=sys.stderr, force_terminal=True)
        elif draws:
            self._cell = _cell()
        streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
        self._terminals = {
            name: _Terminal(stream, self)
            for name, stream in streams.items()
            if _is_terminal(stream)
        }
        vars(sys).update(self._terminals)
        return self

    @property
    def is_drawn(self) -> bool:
        """Whether there is a terminal to draw it on."""
        return self._console is not None

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, *, metrics: Mapping[str, float] | None = None, **facts: float | None) -> None:
        """Note the given values and draw them, at most five times a second.

        Names: step, total, epoch (from 0), epochs; batch, batches (of this epoch); saved_s (when
        the last save was durable, by the monotonic clock).
        """
        known = {name: value for name, value in facts.items() if value is not None}
        if "epoch" in known and "batch" not in known and "batch" in self._facts:
            known["batch"] = 0  # until the first one of this epoch is done
        if known.get("batches", self._facts.get("batches")) != self._facts.get("batches"):
            self._passed.clear()  # another loader: its passes take another time
        self._facts.update(known)
        self._facts["metrics"].update(metrics or {})
        now = time.monotonic()
        if now - self._drawn_at < REFRESH_S:
            return
        self._drawn_at = now
        self._passed.append((now, _passes(self._facts)[0]))
        if self._console is not None:
            line = _coloured(self._console, _cells(self._facts, self._passed))
            if not self._unfinished:
                _write(self._console.file, f"{ERASE}{line}\r")
                self._drawn = True
        elif self._cell is not None:
            self._cell.update({"text/plain": _plain(self._facts, self._passed)}, raw=True)
        elif now - self._logged_at >= LOG_S:
            self._logged_at = now
            say(_plain(self._facts, self._passed))

    def wipe_before(self, text: str) -> None:
        """Wipe the line, since the program is about to write `text`."""
        if self._drawn and self._console is not None:
            _write(self._console.file, ERASE)
            self._drawn = False
        self._unfinished = not text.endswith("\n")

    def close(self) -> None:
        """Wipe the line and restore the streams. A second call does nothing."""
        self.wipe_before("\n")
        for name, stream in self._terminals.items():
            # otherwise other code has replaced it since, and restores it
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.stream)
        self._terminals, self._console = {}, None


class _Terminal:
    """Replaces sys.stdout or sys.stderr where it is a terminal: wipes the progress line before the
    program's own output, and drops that once the terminal was closed. A process that does not lead
    its session may write before SIGHUP reaches it, and an error would end the step and its save.
    """

    def __init__(self, stream: TextIO, progress: ProgressLine) -> None:
        self.stream = stream
        self.progress = progress

    def write(self, text: str) -> int:
        if text:
            self.progress.wipe_before(text)
        try:
            return self.stream.write(text)
        except OSError:
            if not drop_if_hung_up([self.stream.fileno()]):
                raise
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError:
            if not drop_if_hung_up([self.stream.fileno()]):
                raise
            self.stream.flush()

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def drop_if_hung_up(terminals: Iterable[int]) -> bool:
    """Discard from now on what is written to those terminals that were closed; say whether there
    was one.
    """
    closed = [number for number in terminals if not os.isatty(number)]
    for number in closed:
        nowhere = disk.open_null()
        os.dup2(nowhere, number)
        os.close(nowhere)
    return bool(closed)


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


def _cell() -> Any:
    """Begin a line under the notebook's cell that runs; None where no notebook is."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython import display

    # a stop is a SystemExit: in a notebook it ends the cell, and nobody has to exit
    warnings.filterwarnings("ignore", message="To exit: use")
    begin: Any = display.display
    return begin({"text/plain": ""}, raw=True, display_id=True)


def _passes(facts: Mapping[str, Any]) -> tuple[int, int | None]:
    """How many passes of the loop's body are done, and how many it has in all, if that is known."""
    epoch, batches = facts.get("epoch", 0), facts.get("batches")
    if batches and "batch" in facts:
        epochs = facts.get("epochs")
        return epoch * batches + facts["batch"], epochs and epochs * batches
    return facts.get("step", 0), facts.get("total")


def _cells(facts: Mapping[str, Any], passed: deque[tuple[float, int]]) -> list[tuple[str, str]]:
    """The cells of the line, each with its style. The last ones are the first to be cut."""
    cells = []
    if "epoch" in facts:
        cells.append((f"epoch {nth(facts['epoch'], facts.get('epochs'))}", ""))
    word, done, total = "step ", facts.get("step"), facts.get("total")
    if facts.get("batches") and "batch" in facts:
        word, done, total = "", facts["batch"], facts["batches"]
    if total and done is not None:
        full, half = divmod(min(2 * BAR_COLUMNS, 2 * BAR_COLUMNS * done // total), 2)
        cells += [("━" * full + "╸" * half, "green"), ("─" * (BAR_COLUMNS - full - half), "dim")]
    if done is not None:
        cells.append((f"{word}{done}" + (f"/{total}" if total else ""), ""))
    (first_s, first), (last_s, last) = passed[0], passed[-1]
    if last > first and last_s - first_s >= 1:
        pass_s = (last_s - first_s) / (last - first)
        cells.append((f"{1 / pass_s:.3g}/s" if pass_s < 1 else f"{pass_s:.3g} s each", ""))
        if (whole := _passes(facts)[1]) is not None:
            left_s = max(0, whole - last) * pass_s
            form = "%H:%M" if left_s < 20 * 3600 else "%a %H:%M" if left_s < 6 * 86400 else "%F"
            cells.append((f"ends {time.strftime(form, time.localtime(time.time() + left_s))}", ""))
    cells += [(f"{printable(name)} {value:.4g}", "") for name, value in facts["metrics"].items()]
    if facts.get("saved_s"):
        cells.append((f"saved {duration(round(time.monotonic() - facts['saved_s']))} ago", ""))
    return cells


def _plain(facts: Mapping[str, Any], passed: deque[tuple[float, int]]) -> str:
    cells = [text for text, _ in _cells(facts, passed) if text and text[0] not in "━╸─"]
    return "  ".join(cells)


def _coloured(console: Console, cells: list[tuple[str, str]]) -> str:
    """Return the cells as one line, cut to the terminal's width, with colours where it has them."""
    from rich.text import Text

    line = Text()
    for text, style in cells:
        line.append("" if not line or style == "dim" else "  ").append(text, style)
    line.truncate(max(console.width - 1, 1), overflow="ellipsis")  # the last column would wrap
    with console.capture() as captured:
        console.print(line, end="")
    return captured.get()
