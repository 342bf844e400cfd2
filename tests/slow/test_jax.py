"""JAX in a process of its own: it brings threads, and a process with threads is not to be forked, as loaders do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("file", "count"), [("jax_alone.py", 12), ("jax_trees.py", 10)])
def test_jax_arrays_and_trees_are_restored_to_the_bit(file, count):
    """Every test in that file."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", file]
    done = subprocess.run(
        command, check=False, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert re.search(rf"\b{count} passed in", done.stdout), done.stdout
