"""Starts a Slurm cluster, and ends it at once when another process has ended, however that happened.

    python keep_slurm.py DIRECTORY DESCRIPTOR

DESCRIPTOR is a pidfd of that process (pytest). "up" on stdout says that the cluster is ready.
"""

import os
import select
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("slurm-cluster")


def main() -> int:
    """The exit code of the start, when that fails; else of the end."""
    directory, watched = sys.argv[1], int(sys.argv[2])
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    starting = subprocess.Popen(["bash", SCRIPT, "up", directory], start_new_session=True, **quiet)
    started = os.pidfd_open(starting.pid)
    if watched not in select.select([watched, started], [], [])[0]:
        if starting.wait():
            return starting.returncode
        print("up", flush=True)
        select.select([watched], [], [])
    if starting.poll() is None:
        os.killpg(starting.pid, 9)  # it would start more daemons
        starting.wait()
    return subprocess.run(["bash", SCRIPT, "end", directory], check=False, **quiet).returncode


if __name__ == "__main__":
    sys.exit(main())
