"""The example for streams: drilled on two ranks, and a run of two ranks that goes on with one and with three."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from ddp_examples import ALONE, BIN, started, torchrun
from supervised import until


def losses(run):
    """The loss of each step that counts."""
    lines = started(run.parent, BIN / "holdfast", "show", run, "--metrics", "--json").splitlines()
    return {row["step"]: row["values"]["loss"] for row in map(json.loads, lines)}


def test_the_example_for_streams_drilled_on_two_processes_is_identical(tmp_path):
    """`holdfast drill -- torchrun --nproc-per-node 2 examples/streams/train.py`: two kills, the same bits."""
    words = ["--kills", "2", "--signals", "KILL,TERM", "--seed", "3", "--json"]
    found = json.loads(started(tmp_path, BIN / "holdfast", "drill", *words, "--", *torchrun("streams", 2)))
    assert ("identical", 2) == (found["verdict"], found["kills_proven"])


def test_a_run_of_two_ranks_goes_on_with_one_and_three_at_the_same_losses(tmp_path):
    """Killed in the middle: the sequences are the same, so the losses are, but for the rounding of their sums."""
    started(tmp_path, *torchrun("streams", 2))
    whole = losses(tmp_path / "runs/streams")
    cut = tmp_path / "cut"
    cut.mkdir()
    command = [*map(str, torchrun("streams", 2))]
    with subprocess.Popen(command, cwd=cut, env=os.environ | ALONE, stderr=subprocess.DEVNULL) as training:
        run = cut / "runs/streams"
        until(lambda: any((run / "checkpoints").glob("step-0000000[23]*")), patience_s=120)
        training.send_signal(signal.SIGTERM)
    for world in (1, 3):
        place = tmp_path / f"with-{world}"
        shutil.copytree(cut, place)
        started(place, *torchrun("streams", world))
        assert whole == pytest.approx(losses(place / "runs/streams"), abs=1e-12)
