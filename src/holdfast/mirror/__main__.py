"""`python -m holdfast.mirror`: the process that a run's `client` starts."""

import os
import signal
from contextlib import suppress

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)  # before the imports: only the run ends this process
with suppress(FileNotFoundError):  # only Linux has it
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            # closes descriptors that libraries of the run left open: sockets, devices
            with suppress(OSError):
                os.close(int(name))
with suppress(OSError):  # it already leads a session: it was started by hand
    os.setsid()

from .worker import main  # noqa: E402  after the signals

main()
