"""First step: what an attempt notes once, when its first step is done: how long its start took."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DiskError
from . import imports

if TYPE_CHECKING:
    from .session import Session


def done(session: Session) -> None:
    """Journal that the first step is done, and how old the process was then."""
    if session.leads:
        session.record("first_step", process_s=round(_age_s(), 3))
        with suppress(DiskError):  # the line is kept, and written the next time
            session.attempt.show()
        imports.tell()


def _age_s() -> float:
    """Return the seconds since this process was started; 0 if the system does not say. Source: proc(5), field 22."""
    with suppress(OSError, ValueError):
        text = Path("/proc/self/stat").read_text()
        ticks = int(text[text.rindex(")") + 2 :].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return 0.0
