"""What all tests share: the same examples in every CI run, fresh ones on a developer's machine; one thread for operators."""

import gc
import os
import signal

from hypothesis import settings

from real_slurm import begun, pytest_sessionfinish, slurm  # noqa: F401
from scheduling import pytest_configure, pytest_xdist_make_scheduler  # noqa: F401

pytest_plugins = ("laws_ran",)

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


def pytest_collection_finish():
    """Torch, Hypothesis and thousands of tests are there to stay: no search for garbage looks at them again."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Print what the drills of planted scripts have found: script, verdict, cause, line to write, verdict with it."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, [])]
    rows = [value for each in reports for name, value in each.user_properties if name == "row of the table of causes"]
    if rows:
        terminalreporter.section("causes that the drill has named")
        for row in sorted(rows):
            terminalreporter.write_line(row)
