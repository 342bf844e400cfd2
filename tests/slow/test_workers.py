"""The workers of pytest that `make test` has: one of them may die."""

import os
import re
import subprocess
import sys
from pathlib import Path

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
ROOT = Path(__file__).parents[2]


def workers():
    """The options with which the Makefile starts pytest's workers."""
    return re.findall(r"^PYTEST := .*-m pytest (-n .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()


def test_a_test_that_ends_its_worker_is_the_only_one_that_fails(tmp_path):
    """Whichever it is, and whatever child it leaves; all others run once, and the run comes to its end."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    for dies, count in ((3, 2), (10, 3), (11, 3)):
        place = tmp_path / str(dies)
        place.mkdir()
        (place / "conftest.py").write_text("from workers import pytest_configure")
        (place / "test_it.py").write_text(TESTS.format(dies=dies))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *workers(), f"-n{count}", "-q", "-p", "no:cacheprovider"],
            check=False,
            cwd=place,
            env={**clean, "PYTHONPATH": str(ROOT / "tests")},
            stdin=subprocess.DEVNULL,
            capture_output=True,  # its end does not come either if the child lives on
            text=True,
            timeout=150,
        )
        assert "1 failed, 11 passed" in done.stdout, done.stdout
        assert f"crashed while running 'test_it.py::test_[{dies}]'" in done.stdout
        assert list(range(12)) == sorted(int(line) for line in (place / "begun").read_text().split())
