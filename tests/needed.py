"""What a test needs of the machine, and the reason for a skip where that is absent; .ci/run installs all of it."""

import os
import shutil

import pytest


def missing(*programs, root=False):
    """Which of these programs are not on PATH, and whether root is needed; empty when nothing is missing."""
    absent = [name for name in programs if shutil.which(name) is None]
    reasons = ["only root may do this"] * (root and os.geteuid() != 0)
    return "; ".join([f"not on PATH: {', '.join(absent)}"] * bool(absent) + reasons)


def needs(*programs, root=False):
    """A mark that skips a test where one of them is missing."""
    reason = missing(*programs, root=root)
    return pytest.mark.skipif(bool(reason), reason=reason)
