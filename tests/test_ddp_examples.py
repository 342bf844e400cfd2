"""The examples for DDP and FSDP2, as they are: by torchrun on two and on four processes, killed on purpose and compared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Store

EXAMPLES = Path(__file__).parents[1] / "examples"
BIN = Path(sys.executable).parent
ALONE = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

pytestmark = [pytest.mark.slow, pytest.mark.ranks]


def started(place, *command):
    """What a command prints, in a directory of its own."""
    found = subprocess.run(
        command, cwd=place, env=os.environ | ALONE, capture_output=True, text=True, check=False, timeout=600
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def torchrun(kind, world):
    port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    return [BIN / "torchrun", *port, "--nproc-per-node", str(world), EXAMPLES / kind / "train.py"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_an_example_learns_on_two_processes_and_is_found_done_by_four(kind, tmp_path):
    """Five lines more than a plain script; a finished run has nothing to do, whatever the number of processes."""
    assert "epoch 4: accuracy 0.9" in started(tmp_path, *torchrun(kind, 2))
    (before,) = {each.name for each in Store(tmp_path / "runs" / kind).checkpoints()[-1:]}
    assert "epoch" not in started(tmp_path, *torchrun(kind, 4))
    assert Store(tmp_path / "runs" / kind).latest().name == before


@pytest.mark.drill
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_an_example_drilled_on_four_processes_is_identical(kind, tmp_path):
    """`holdfast drill -- torchrun --nproc-per-node 4 train.py`: killed, damaged, started again, and the same bits."""
    said = started(tmp_path, BIN / "holdfast", "drill", "--kills", "2", "--seed", "5", "--", *torchrun(kind, 4))
    assert said.rstrip().endswith("identical")
