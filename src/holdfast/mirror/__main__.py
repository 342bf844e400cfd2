"""`python -m holdfast.mirror`: the process that a run's `client` starts."""

import os
import signal
from contextlib import suppress

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)  # before the imports: the run decides when this ends
with suppress(OSError):  # it has a session already, started by hand
    os.setsid()

from .worker import main  # noqa: E402  after the signals

main()
