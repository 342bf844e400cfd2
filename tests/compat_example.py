"""The example of a cycling_utils user as a process, with and without torchrun."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from holdfast.children import processes

EXAMPLE = Path(__file__).parents[1] / "examples" / "cycling_utils" / "train.py"


def start(output_directory, *launcher, epochs=2):
    options = ["--output-directory", str(output_directory), "--epochs", str(epochs), "--save-every", "3"]
    command = [*launcher, str(EXAMPLE), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    text = process.communicate()[0]
    assert process.returncode == 0, text
    return text


def saved(process, times):
    """Wait until the script has said so often that it saved."""
    seen = 0
    for line in process.stdout:
        seen += "Saved epoch" in line
        if seen == times:
            return
    pytest.fail("it ended before")


def kill_all(process):
    """A lost node: the launcher and every rank at once."""
    for pid in (process.pid, *processes.descendants(process.pid)):
        with suppress(ProcessLookupError):  # its parent has taken it along
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def final(output_directory):
    return torch.load(output_directory / "final.pt", weights_only=True)


def same(one, other):
    """The same weights and metrics, bit for bit."""
    one, other = final(one), final(other)
    assert one["epoch_reports"] == other["epoch_reports"]
    assert one["model"]
    assert one["model"].keys() == other["model"].keys()
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    return one
