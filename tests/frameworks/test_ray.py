"""The example for Ray Train, whose two workers are killed in turn. No lock has Ray: `pip install "ray[train]"`."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray.train.torch", reason='Ray is not installed: pip install "ray[train]"')
EXAMPLE = Path(__file__).parents[2] / "examples/ray/train.py"
WORKER = r"pid=(\d+)\) world_rank={}"


def reached(place, process):
    """The newest step that was saved; the whole training once the process has ended."""
    saved = [int(each.name.split("-")[1]) for each in place.glob("runs/ray/checkpoints/step-*")]
    return max(saved, default=0) if process.poll() is None else 10**9


def trained(place, kills):
    """The last checkpoint, and what was printed. `kills`: which rank is killed once that step was saved."""
    place.mkdir()
    with (place / "said").open("w") as said:
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        process = subprocess.Popen([sys.executable, EXAMPLE], cwd=place, stdout=said, stderr=said, env=environment)
    for step, rank in kills.items():
        while reached(place, process) < step:
            time.sleep(0.05)
        assert process.poll() is None, "it ended before it was killed"
        worker = re.findall(WORKER.format(rank), (place / "said").read_text())[-1]
        os.kill(int(worker), signal.SIGKILL)
    assert process.wait(300) == 0, (place / "said").read_text()[-3000:]
    return place / "runs/ray/checkpoints/latest", (place / "said").read_text()


def test_workers_that_ray_starts_again_end_bit_for_bit_as_undisturbed_ones(tmp_path):
    """Each rank is killed once; the states of both ranks are the same, but for generators that nobody seeds."""
    undisturbed, _ = trained(tmp_path / "undisturbed", {})
    killed, said = trained(tmp_path / "killed", {40: 1, 90: 0})
    assert len(re.findall("resumes at step", said)) == 2
    unseeded = ("--exempt", "*rng/numpy", "--exempt", "*rng/python")
    diff = [sys.executable, "-m", "holdfast", "diff", *unseeded, undisturbed, killed]
    compared = subprocess.run(diff, capture_output=True, text=True, check=False)
    assert compared.stdout.splitlines()[-1] == "identical", compared.stdout
