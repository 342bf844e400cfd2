"""What all tests share: the same examples in every CI run, fresh ones elsewhere; one thread for operators."""

import gc
import os
import signal

import pytest
from hypothesis import settings

from causes import zygotes  # noqa: F401
from exactness import lab  # noqa: F401
from metadata import service  # noqa: F401
from real_slurm import begun, pytest_sessionfinish, slurm  # noqa: F401
from workers import pytest_configure  # noqa: F401

pytest_plugins = ("sample", "laws_ran", "tally")
collect_ignore = [
    each for each in ("frameworks", "vision") if not os.environ.get(each.upper())
]  # environments of their own

gc.set_threshold(50_000, 20, 20)  # what tests leave is small, and each search looks at all that they hold

# Before torch is there: several test processes share the cores, and operators' threads would only spin for each other.
# What their number changes is asked by tests/test_exactness.py, which sets it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts us in the background has the terminal's signals ignored, and whatever we start would inherit that.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("here", deadline=None)
chosen = "ci" if os.environ.get("CI") else "here"
settings.register_profile("quick", settings.get_profile(chosen), max_examples=25)  # of `make check`
settings.load_profile(chosen)


def pytest_collection_modifyitems(items):
    """Real Slurm's stories come first: they wait while other workers work."""
    items.sort(key=lambda item: not hasattr(getattr(item, "function", None), "story"))


SYNC = os.fsync
DISKS = ("disk_faults_real", "power_loss_sample", "real_file_systems", "small_disks")
SYNCING = {"prove", "frameworks", "vision", *(f"test_{name}.py" for name in DISKS)}
HANDLED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Give each test the process's own signal handlers: children of later tests inherit an ignored signal.

    Where no power fails and no disk is real, nothing is synchronised: that would be most of a small save's time.
    """
    vars(os)["fsync"] = SYNC if {item.path.parent.name, item.path.name} & SYNCING else _no_sync
    before = {number: signal.getsignal(number) for number in HANDLED}
    try:
        return (yield)
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)


def _no_sync(descriptor):
    """Do nothing: what the page cache holds outlives every process."""


@pytest.fixture
def no_syncs(monkeypatch):
    """No power fails in this test of tests/prove; other folders have this anyway."""
    monkeypatch.setattr("os.fsync", _no_sync)


def pytest_collection_finish():
    """Torch, Hypothesis and thousands of tests are there to stay: no search for garbage looks at them again."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Print what tests have recorded as lines of a table: `record_property("table: NAME", line)`."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, [])]
    rows = [pair for each in reports for pair in each.user_properties if pair[0].startswith("table: ")]
    for table in sorted({name for name, _ in rows}):
        terminalreporter.section(table.removeprefix("table: "))
        for line in sorted(line for name, line in rows if name == table):
            terminalreporter.write_line(line)
