"""Wait: the parent that CRIU gives to a program that it has restored. It ends as that program ends."""

from __future__ import annotations

import os
import sys

SIGNALLED = 128  # and the signal's number: what a shell would say


def wait() -> int:
    """The exit code of the only child, as a shell would say it."""
    _, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else SIGNALLED - code


if __name__ == "__main__":
    sys.exit(wait())
