"""CRIU: a process tree that runs on CPUs, dumped and restored through the kernel. Usually needs
root.

Observed with 4.2. A dump ends the program with SIGKILL. A restore in the foreground exits with 0
whatever the program's exit code is, so we run our own parent process above it. A restore does not
truncate files to their old size, so we do that.
"""

from __future__ import annotations

import os
import shutil
import signal as signals
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from .. import disk, scan
from ..children import processes
from ..errors import UsageError
from ..state.validation import Count, errors_as_damage
from . import wait
from .program import ProgramCheckpoint, ProgramExit, Verdict, make_empty

SIZES = "holdfast-sizes.json"
KILLED = {-signals.SIGKILL, wait.SIGNALLED + signals.SIGKILL}
REFUSED = (
    "Unexpected EOF",
    "Magic doesn't match",
    "Can't read image",
    "Unable to open inventory",
    "No images",
)
_PROC = Path("/proc")


class Criu:
    """One program. Its output goes to `output.txt` in the supervisor's directory,
    its dump to `images`.
    """

    def __init__(self, _work: Path, room: Path) -> None:
        self._room = room
        self._images = room / "images"
        # files that it had open for writing when it was told to stop
        self._written: list[Path] | None = None
        self._found: ProgramCheckpoint | None = None
        self._resumed = False

    def begin(
        self, command: Sequence[str], checkpoint: Path | None, time_left_s: float | None
    ) -> Sequence[str]:
        """Return the command with its output in a file, or `criu restore` after its files were
        truncated.

        The supervisor enforces the time limit.
        """
        del time_left_s
        if shutil.which("criu") is None:
            raise UsageError(
                "--app criu: there is no criu on PATH; install CRIU 4.2 or later (docs/apps.md)"
            )
        make_empty(self._images)
        self._written = self._found = None
        self._resumed = checkpoint is not None
        if checkpoint is None:
            return [
                "sh",
                "-c",
                'exec "$@" </dev/null >>"$0" 2>&1',
                str(self._room / "output.txt"),
                *command,
            ]
        _cut_back(checkpoint)
        parent = [sys.executable, "-m", wait.__name__]
        places = ["-D", str(checkpoint), "-W", str(self._images)]
        return ["criu", "restore", *places, "--shell-job", "--exec-cmd", "--", *parent]

    def checkpoint(self) -> ProgramCheckpoint | None:
        """Return the dump that ended it; None while it runs."""
        return self._found

    def stop(self, signal: int, pid: int) -> int | Sequence[str]:
        """Return `criu dump` of the program's whole process tree, which ends it."""
        del signal
        tree = processes.descendants(pid) if self._resumed else [pid, *processes.descendants(pid)]
        if not tree:
            return signals.SIGTERM  # it is not restored yet, and its dump is still valid
        if self._written is None:
            self._written = sorted({path for each in tree for path in _open_for_writing(each)})
        return ["criu", "dump", "-t", str(tree[0]), "-D", str(self._images), "--shell-job"]

    def verdict(self, ended: ProgramExit) -> Verdict:
        """Stopped if a dump is complete and SIGKILL ended the program;
        else its own exit code decides.
        """
        inventory = self._images / "inventory.img"  # CRIU writes it last
        if self._written is not None and ended.code in KILLED and scan.is_file(inventory):
            self._found = self._complete(self._written)
            return "stopped"
        if ended.code == 0:
            return "done"
        if ended.resumed and any(word in ended.tail for word in REFUSED):
            return "damaged"
        return "stopped" if ended.told and (ended.code < 0 or ended.code in KILLED) else "failed"

    def _complete(self, written: Sequence[Path]) -> ProgramCheckpoint:
        """Return the dump, with the sizes of the files to which the program was appending."""
        sizes = {str(path): path.stat().st_size for path in written if scan.is_file(path)}
        disk.replace_with(self._images / SIZES, [msgspec.json.encode(sizes)])
        return ProgramCheckpoint(
            sorted(path for path in self._images.iterdir() if scan.is_file(path)), whole=True
        )


def _sizes(checkpoint: Path) -> dict[str, Count]:
    """Return the sizes of the files to which the program was appending, by their paths.

    Raises:
        Damaged: Holdfast did not write them.
    """
    try:
        data = (checkpoint / SIZES).read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"{checkpoint}: holds no dump of CRIU; another program's? Give another --run"
        ) from None
    with errors_as_damage(f"{checkpoint / SIZES}"):
        return msgspec.json.decode(data, type=dict[str, Count])


def _cut_back(checkpoint: Path) -> None:
    """Truncate the program's files to the sizes that they had when it was dumped.

    Raises:
        UsageError: one does not exist any more, or is shorter.
    """
    for name, size_bytes in _sizes(checkpoint).items():
        there = os.stat(name).st_size if scan.is_file(name) else -1
        if there < size_bytes:
            had = "is gone" if there < 0 else f"has {there} bytes"
            raise UsageError(
                f"{name} {had}, and had {size_bytes} when "
                f"{checkpoint.name} was made: put it back, whole"
            )
        disk.truncate(Path(name), size_bytes)


def _open_for_writing(pid: int) -> Iterator[Path]:
    """Yield the plain files that a process may write to."""
    entries: list[Path] = []
    with suppress(OSError):  # it has ended
        entries = scan.glob(_PROC, f"{pid}/fd/*")
    for entry in entries:
        try:
            path = Path(os.readlink(entry))
            flags = (_PROC / str(pid) / "fdinfo" / entry.name).read_text(encoding="ascii")
            mode = os.stat(entry).st_mode
        except OSError:
            continue  # it ended, or closed the file, in the meantime
        opened = int(flags.split("flags:")[1].split()[0], 8)
        if stat.S_ISREG(mode) and opened & os.O_ACCMODE != os.O_RDONLY and scan.is_file(path):
            yield path
