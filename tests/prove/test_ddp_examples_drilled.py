"""The examples for DDP and FSDP2, as they are: by torchrun on several processes, killed on purpose and compared."""

import json

import pytest

from ddp_examples import BIN, started, torchrun


def test_the_example_for_fsdp_learns_on_two_processes(tmp_path):
    """Five lines more than a plain script."""
    assert "epoch 4: accuracy 0.9" in started(tmp_path, *torchrun("fsdp", 2))


@pytest.mark.parametrize(("kind", "signals"), [("ddp", "KILL,RANK"), ("fsdp", "TERM,RANK")])
def test_an_example_drilled_on_four_processes_is_identical(kind, signals, tmp_path):
    """`holdfast drill -- torchrun --nproc-per-node 4 train.py`: all of them killed, or told to stop, and one of them
    killed;
    what one has written is damaged: the same bits, on every rank.
    """
    words = ["--kills", "2", "--signals", signals, "--seed", "5", "--json"]
    found = json.loads(started(tmp_path, BIN / "holdfast", "drill", *words, "--", *torchrun(kind, 4)))
    assert ("identical", 2) == (found["verdict"], found["kills_proven"])
    assert {*signals.split(","), None} == {each["signal"] for each in found["attempts"]}
    assert any(each["damage"] and "rank-" in each["damage"] for each in found["attempts"])
