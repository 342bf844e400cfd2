"""Takes away from this process what Linux has and macOS has not; what remains stands in for macOS.

import not_linux
not_linux.begin()
"""

import builtins
import ctypes
import fcntl
import io
import mmap
import os
import re
import signal
from types import ModuleType
from typing import Any

TAKEN: dict[ModuleType, str] = {
    os: r"O_(DIRECT|TMPFILE|PATH|NOATIME)|sched_\w+affinity|posix_(fadvise|fallocate)|POSIX_FADV_\w+|memfd_create"
    r"|MFD_\w+|pipe2|fdatasync|copy_file_range|splice|eventfd\w*|EFD_\w+|pidfd_open|\w+xattr|getrandom",
    mmap: r"MADV_(NO)?HUGEPAGE|MADV_\w+FORK|MADV_\w+DUMP|MADV_POPULATE\w+|MAP_POPULATE",
    signal: r"SIGRTMIN|SIGRTMAX|SIGPWR|SIGPOLL|SIGSTKFLT|sigwaitinfo|sigtimedwait",
    fcntl: r"F_OFD_\w+|F_\w+_SEALS|F_SEAL_\w+|F_[GS]ETPIPE_SZ|F_NOTIFY|DN_\w+|F_[GS]ETLEASE",
}
PATHS = ("open", "listdir", "scandir", "stat", "lstat", "readlink", "access")
LIBRARY = ("renameat2", "prctl", "fallocate", "malloc_trim", "syncfs")


def begin() -> None:
    """Take it away: names of modules, functions of the C library, and /proc."""
    for module, names in TAKEN.items():
        for name in [name for name in vars(module) if re.fullmatch(names, name)]:
            delattr(module, name)
    for name in PATHS:
        setattr(os, name, _without_proc(getattr(os, name)))
    io.open = builtins.open = _without_proc(open)
    real = ctypes.CDLL.__getattr__

    def lacking(library: ctypes.CDLL, name: str) -> Any:
        if name in LIBRARY:
            raise AttributeError(name)
        return real(library, name)

    ctypes.CDLL.__getattr__ = lacking


def _without_proc(call: Any) -> Any:
    def called(path: Any = ".", *given: Any, **options: Any) -> Any:
        if isinstance(path, str | bytes | os.PathLike) and f"{os.fsdecode(path)}/".startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
        return call(path, *given, **options)

    return called
