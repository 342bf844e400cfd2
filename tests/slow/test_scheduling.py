"""The workers of pytest that `make test` has: one of them may die."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os, time
import pytest

@pytest.mark.parametrize("number", range(12))
def test_(number):
    with open("begun", "a") as file:
        print(number, file=file)
    if number == {dies}:
        if os.fork() == 0:
            time.sleep(600)
        time.sleep(0.5)  # the child has begun
        os._exit(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dies", [3, 10, 11])
def test_a_test_that_ends_its_worker_is_the_only_one_that_fails(tmp_path, dies):
    """Whichever it is, and whatever child it leaves; all others run once, and the end is not waited for."""
    (tmp_path / "conftest.py").write_text("from scheduling import pytest_configure, pytest_xdist_make_scheduler")
    (tmp_path / "test_it.py").write_text(TESTS.format(dies=dies))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider"],
        check=False,
        cwd=tmp_path,
        env={**clean, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.DEVNULL,
        capture_output=True,  # whose end would not come either if the child lived on
        text=True,
        timeout=120,
    )
    assert "1 failed, 11 passed" in done.stdout
    assert f"crashed while running 'test_it.py::test_[{dies}]'" in done.stdout
    assert list(range(12)) == sorted(int(line) for line in (tmp_path / "begun").read_text().split())
