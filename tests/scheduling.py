"""Which worker of pytest-xdist gets which tests, and what becomes of them when it dies.

The scheduling by scopes of xdist 3.8 begins a test that has ended its worker once more, in the next one; it hands out what
the dead worker had finished, as units without a test; and it leaves a worker with one test, which it begins only when it
knows the next: both then stand still for ever.
"""

import ctypes
import os
import signal
import threading
from pathlib import Path

import pytest

PR_SET_PDEATHSIG = 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Of several workers, one gets all files with stories, and first; the others share the rest. What a file's tests of
    several ranks have launched together is for one worker, too.
    """
    from xdist.scheduler import LoadScopeScheduling

    files = {path.name: path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")}
    telling = {name for name, text in files.items() if "\n@concurrently\n" in text}
    launching = {name for name, text in files.items() if 'scope="module"' in text and "mark.ranks" in text}

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            name = Path(nodeid.split("::")[0]).name
            return "slurm" if name in telling else name if name in launching else nodeid

        def remove_node(self, node):
            """The test that a worker has died of, if any; what it had not begun is for the others."""
            units = self.assigned_work.pop(node).items()
            left = {name: scope for scope, unit in units for name, done in unit.items() if not done}
            ended = next(iter(left), None)
            left.pop(ended, None)
            for name, scope in left.items():
                self.workqueue.setdefault(scope, {})[name] = False
            for other in self.nodes:
                self._reschedule(other)
            return ended

        def _reschedule(self, node):
            super()._reschedule(node)
            while self._pending_of(self.assigned_work[node]) < 2 and not node.shutting_down:
                super()._reschedule(node)

    return Scheduling(config, log)


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
        if (
            os.getppid() == here and threading.current_thread().name == "MainThread"
        ):  # it is the thread that has to live
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    os.register_at_fork(after_in_child=forked)


def _let_go(*descriptors):
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in descriptors:
        os.dup2(nothing, each, inheritable=False)
    os.close(nothing)
