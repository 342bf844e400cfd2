"""Scripts that somebody else wrote are drilled, each with its patch, where copies of their repositories are at hand.

HOLDFAST_STRANGERS names the directory with the copies; nothing here can fetch them. Without it there is no test to run,
and the summary says so.
"""

import os
import subprocess
import sys

import pytest
from test_strangers import HOME, names

COPIES = os.environ.get("HOLDFAST_STRANGERS")

if COPIES is not None:

    @pytest.mark.parametrize("name", names())
    def test_the_patched_script_is_drilled(name):
        """Each one resumes bit for bit, in a copy of its repository."""
        command = [sys.executable, str(HOME / "drill.py"), "--verbose", name, COPIES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ": identical" in done.stdout
