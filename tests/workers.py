"""What holds in each worker of pytest-xdist: no child that a test has forked outlives it."""

import ctypes
import os
import signal
import threading

PR_SET_PDEATHSIG = 1


def pytest_configure(config):
    """A forked child does not outlive its worker, nor hold the pipe by whose end the worker's death is seen."""
    worker = next(
        (each for each in config.pluginmanager.get_plugins() if type(each).__name__ == "WorkerInteractor"), None
    )
    if worker is None:
        return
    pipe, here, libc = worker.channel.gateway._io, os.getpid(), ctypes.CDLL(None)

    def forked():
        _let_go(pipe.infile.fileno(), pipe.outfile.fileno())
        # The kernel watches the thread that forked: only the main one lives as long as the worker.
        if os.getppid() == here and threading.current_thread().name == "MainThread":
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    os.register_at_fork(after_in_child=forked)


def _let_go(*descriptors):
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in descriptors:
        os.dup2(nothing, each, inheritable=False)
    os.close(nothing)
