"""`python -m holdfast.mirror`: the process that a run's `client` starts."""

import os
import signal
from contextlib import suppress

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)  # before the imports: the run decides when this ends
with suppress(FileNotFoundError):  # only Linux has it
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):  # what a library of the run has left to its children is not ours: sockets, devices
                os.close(int(name))
with suppress(OSError):  # it has a session already, started by hand
    os.setsid()

from .worker import main  # noqa: E402  after the signals

main()
