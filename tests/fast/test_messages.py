"""Mistakes in a script or on the command line: the answer says what, where, and what to write."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from holdfast import Every, Last, Run
from holdfast.errors import UsageError
from stores import invoke
from toy import Toy


def optimized():
    model = torch.nn.Linear(2, 1)
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters())}


def misspelt(name):
    return {name: 5}


@pytest.mark.parametrize(
    ("mistake", "answer"),
    [
        (lambda place: Every(**misspelt("step")), "Every(...) has no step=: did you mean steps=?"),
        (lambda place: Last(**misspelt("count")), "Last(...) has no count=; it has n"),
        (lambda place: Run(place, {}, **misspelt("evry")), "Run(...) has no evry=: did you mean every=?"),
        (lambda place: entered(place, overrides={"model": {"lr": 1}}), "a Linear has no options to set"),
        (
            lambda place: entered(place, overrides={"optimizer": {"betas": 3}}),
            "betas is (0.9, 0.999): give a tuple of 2, not 3",
        ),
        (lambda place: entered(a_file(place)), "is a file: a run needs a directory of its own"),
    ],
)
def test_a_mistake_in_a_script_is_answered_with_what_to_write(mistake, answer, tmp_path):
    """A name that is almost right with the right one, a value with its form."""
    with pytest.raises(UsageError) as raised:
        mistake(tmp_path / "run")
    assert answer in str(raised.value)


def entered(place, **options):
    for _ in range(2):  # overrides count for a run that is there
        with Run(place, optimized(), **options) as run:
            [*run.steps(1)]


def a_file(place):
    place.write_text("")
    return place


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("list", "there is no command 'list': did you mean ls?"),
        ("rm", "did you mean prune?"),
        ("shwo", "did you mean show?"),
        ("ls run@latest", "run@latest: ls takes a whole run, run; holdfast show run@latest shows one step"),
        ("prune run --keep latest=1", "latest=1 is no rule"),
    ],
)
def test_a_mistake_on_the_command_line_is_answered_with_what_to_type(line, answer, tmp_path, monkeypatch):
    """The command that was meant, or the form."""
    monkeypatch.chdir(tmp_path)
    with Run("run", {"toy": Toy()}) as run:
        [*run.steps(1)]
    ended = invoke(*line.split())
    assert 2 == ended.exit_code
    assert answer in ended.stderr


def test_a_run_that_is_suspended_is_called_so(tmp_path):
    """By the start that it keeps waiting: fg continues it."""
    script = f"""
import time
from pathlib import Path
from holdfast import Run
with Run({str(tmp_path / "run")!r}, {{"x": [0]}}) as run:
    for step in run.steps(2):
        print("in", flush=True)
        time.sleep(600)
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert b"in\n" == child.stdout.readline()
        os.kill(child.pid, signal.SIGSTOP)
        while " T " not in Path(f"/proc/{child.pid}/stat").read_text():
            time.sleep(0.01)
        with pytest.raises(UsageError, match="suspended by Ctrl-Z: fg in its shell continues it"):
            entered(tmp_path / "run")
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
