"""The examples for DDP and FSDP2 as processes under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
BIN = Path(sys.executable).parent
ALONE = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def started(place, *command):
    """What a command prints, in a directory of its own."""
    found = subprocess.run(command, cwd=place, env=os.environ | ALONE, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def torchrun(kind, world):
    port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    return [BIN / "torchrun", *port, "--nproc-per-node", str(world), EXAMPLES / kind / "train.py"]
