"""Wait: the parent process of a program that CRIU has restored.
It exits with the program's exit code.
"""

from __future__ import annotations

import os
import sys

SIGNALLED = 128  # plus the signal's number: a shell's exit code


def wait_for_child() -> int:
    """Return the exit code of the only child, in a shell's notation."""
    _, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else SIGNALLED - code


if __name__ == "__main__":
    sys.exit(wait_for_child())
