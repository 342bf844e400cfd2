"""Trainings of frameworks whose weights turn NaN: with `stop_on_nan` they end there, and nobody starts them again."""

import os
import subprocess
import sys

import pytest

from framework_runs import SCRIPTS
from holdfast import Store, journal

LINE = "stop_on_nan: step-000000004 has infinite or NaN numbers in model/"


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_training_that_turns_nan_ends_and_keeps_the_last_finite_checkpoint(tmp_path, framework):
    """Under a supervisor with retries: one start, which exits with 1 and says from where it would be repeated."""
    command = [sys.executable, str(SCRIPTS / f"not_finite_{framework}.py")]
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "--run", "kept", "--retries", "5", "--", *command],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "weights not finite: another start would end like this one" in ended.stderr
    assert LINE in ended.stderr
    assert "start with Run(..., go_back=3)" in ended.stderr
    (log,) = journal.logs(tmp_path / "run")
    assert ("failed", "NotFinite") == (log.last["event"], log.last["kind"])
    assert [(3, False), (4, True)] == [
        (each.step, bool(each.head.not_finite)) for each in Store(tmp_path / "run").checkpoints()
    ]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert 1 == again.returncode
    assert "the run does not go on from there" in again.stderr
