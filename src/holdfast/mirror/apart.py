"""Apart: a worker's process cuts its ties to the run that has started it; only the run's pipes and
its end are left.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import IO

NICE = 10  # the training's processes come first


def leave_parent() -> None:
    """Ignore signals and close inherited descriptors: only the run ends this process.

    Called before the imports that take long.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    with suppress(FileNotFoundError):  # only Linux has it
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                # closes descriptors that libraries of the run left open: sockets, devices
                with suppress(OSError):
                    os.close(int(name))
    with suppress(OSError):  # it already leads a session: it was started by hand
        os.setsid()


def take_pipes() -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    """Return stdin, stdout and stderr for the protocol;
    nothing else reads or writes them from here on.
    """
    from .. import disk  # after `leave_parent`

    source, target, errors = (
        os.fdopen(os.dup(number), mode) for number, mode in enumerate(("rb", "wb", "wb"))
    )
    nowhere = disk.open_null()
    for taken in (0, 1, 2):  # a library's output could contain a secret, or break a line
        os.dup2(nowhere, taken)
    os.close(nowhere)
    os.nice(NICE)
    return source, target, errors
