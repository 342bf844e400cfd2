"""JAX in a process of its own: it brings threads, and a process with threads is not to be forked, as loaders do."""

import re
import subprocess
import sys
from pathlib import Path


def test_jax_arrays_are_saved_by_reference_and_restored_to_the_bit():
    """Every test in jax_alone.py."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "jax_alone.py"]
    done = subprocess.run(
        command, check=False, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert re.search(r"\b9 passed in", done.stdout), done.stdout
