"""The examples for DDP and FSDP2, as they are: by torchrun on two and on four processes, killed on purpose and compared."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent
ALONE = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

pytestmark = [pytest.mark.slow, pytest.mark.ranks]


def started(place, *command):
    """What a command prints, in a directory of its own."""
    found = subprocess.run(command, cwd=place, env=os.environ | ALONE, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def torchrun(kind, world):
    port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    return [BIN / "torchrun", *port, "--nproc-per-node", str(world), EXAMPLES / kind / "train.py"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_an_example_learns_on_two_processes(kind, tmp_path):
    """Five lines more than a plain script."""
    assert "epoch 4: accuracy 0.9" in started(tmp_path, *torchrun(kind, 2))


@pytest.mark.drill
@pytest.mark.parametrize(("kind", "signals"), [("ddp", "KILL,RANK"), ("fsdp", "TERM,RANK")])
def test_an_example_drilled_on_four_processes_is_identical(kind, signals, tmp_path):
    """`holdfast drill -- torchrun --nproc-per-node 4 train.py`: all of them killed, or told to stop, and one of them killed;
    what one has written is damaged: the same bits, on every rank.
    """
    words = ["--kills", "2", "--signals", signals, "--seed", "5", "--json"]
    found = json.loads(started(tmp_path, BIN / "holdfast", "drill", *words, "--", *torchrun(kind, 4)))
    assert ("identical", 2) == (found["verdict"], found["kills_proven"])
    assert {*signals.split(","), None} == {each["signal"] for each in found["attempts"]}
    assert any(each["damage"] and "rank-" in each["damage"] for each in found["attempts"])
