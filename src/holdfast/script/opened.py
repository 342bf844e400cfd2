"""Opened: in a drill,
records which files this process reads that another run of the drill wrote.
"""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from .. import disk, scan, settings
from ..errors import UsageError
from ..settings import DrillSettings
from .visible import script_frames

MOST = 1000  # most lines of one process
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CACHES = (
    "/__pycache__/",
    "/site-packages/",
    "/dist-packages/",
    "/torchinductor_",
    "/.triton/",
    "/.cache/",
)
_CACHE_DIRS = (
    "XDG_CACHE_HOME",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "NUMBA_CACHE_DIR",
    "MPLCONFIGDIR",
    "HF_HOME",
)
_SYSTEM = ("/proc/", "/dev/", "/sys/", "/run/")


def record_opened_files() -> None:
    """Record what this process and its forked children open, if a drill requests it."""
    with suppress(UsageError):  # the run itself raises it
        wishes = settings.read_drill_settings()
        if wishes.opened is not None:
            sys.addaudithook(_FileAuditHook(wishes, Path(wishes.opened)).on_audit_event)


class _FileAuditHook:
    """Records each relevant `open` and `rename` of this process, as Python's audit hook.

    It must never raise: an exception of an audit hook forbids the call.
    """

    def __init__(self, wishes: DrillSettings, evidence: Path) -> None:
        self._evidence, self._since_ns = evidence, wishes.since_ns
        self._own = str(evidence.parents[1]) + os.sep  # the drill's runs
        caches = [os.environ[name] for name in _CACHE_DIRS if os.environ.get(name)]
        installed = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()]
        self._passed_over = tuple(
            os.path.realpath(place) + os.sep for place in [*caches, *installed]
        )
        self._wrote: set[str] = set()
        self._read: set[str] = set()
        self._within = threading.local()

    def on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "sqlite3.connect") or getattr(
            self._within, "busy", False
        ):
            return
        self._within.busy = True
        try:
            with suppress(Exception):
                if event == "os.rename":
                    self._record_written(arguments[1])
                elif event == "sqlite3.connect":
                    self._record_written(str(arguments[0]).removeprefix("file:").partition("?")[0])
                elif isinstance(arguments[0], str | bytes | os.PathLike):
                    self._on_open(arguments[0], int(arguments[2]))
        finally:
            self._within.busy = False

    def _on_open(self, path: Any, flags: int) -> None:
        if flags & (os.O_WRONLY | os.O_TRUNC) == 0:
            self._record_read(path)
        if flags & _WRITES:
            self._record_written(path)

    def _record_read(self, path: Any) -> None:
        facts = os.stat(path)
        drill_ns, run_ns = self._since_ns
        if not stat.S_ISREG(facts.st_mode) or not drill_ns <= facts.st_mtime_ns < run_ns:
            return  # it existed before the drill, or this run wrote it
        if facts.st_size == 0:
            return  # a lock
        real = self._resolve_path(path)
        if real is not None and real not in self._wrote | self._read:
            self._read.add(real)
            self._append_line(read=real, written_ns=facts.st_mtime_ns)

    def _record_written(self, path: Any) -> None:
        real = self._resolve_path(path)
        if real is not None and real not in self._wrote and not scan.is_dir(real):
            self._wrote.add(real)
            self._append_line(wrote=real)

    def _resolve_path(self, path: Any) -> str | None:
        """The resolved path; None for files of the drill, the system, a package or a cache."""
        real = os.path.realpath(os.fsdecode(path))
        ours = real.startswith((self._own, *_SYSTEM, *self._passed_over))
        return (
            None if ours or real.endswith(".pyc") or any(part in real for part in _CACHES) else real
        )

    def _append_line(self, **line: object) -> None:
        """Add a line, with the script's innermost line of the call stack, as `train.py:12`."""
        if len(self._wrote) + len(self._read) <= MOST:
            place = next(
                (
                    f"{os.path.basename(each.f_code.co_filename)}:{each.f_lineno}"
                    for each in script_frames()[::-1]
                ),
                "",
            )
            disk.append(
                self._evidence, msgspec.json.encode({**line, "at": place}) + b"\n", sync=False
            )
