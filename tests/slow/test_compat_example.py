"""The example of a cycling_utils user: killed under torchrun and run again, it ends with the same bytes."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.ranks]

TRAIN = Path(__file__).parents[2] / "examples" / "cycling_utils" / "train.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def start(output_directory, *launcher, epochs=2):
    options = ["--output-directory", str(output_directory), "--epochs", str(epochs), "--save-every", "3"]
    command = [*launcher, str(TRAIN), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    text = process.communicate()[0]
    assert process.returncode == 0, text
    return text


def below(pid):
    """The process and all that descend from it, ancestors first. Source: proc(5), field 4."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(text[text.rindex(")") + 2 :].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


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
    for pid in below(process.pid):
        with suppress(ProcessLookupError):  # its parent has taken it along
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def kill_one(process):
    """A lost rank: the launcher ends the other."""
    ranks = below(process.pid)[1:3]
    assert len(ranks) == 2
    os.kill(ranks[-1], signal.SIGKILL)
    process.communicate()
    assert process.returncode == 1


def final(output_directory):
    return torch.load(output_directory / "final.pt", weights_only=True)


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """What two ranks have left that were killed in the first epoch: a lost node."""
    place = tmp_path_factory.mktemp("cut") / "cut"
    process = start(place, *TORCHRUN, "2")
    saved(process, 3)
    kill_all(process)
    return place


def test_killed_under_torchrun_it_ends_with_the_same_weights_and_metrics(cut, tmp_path):
    """Two ranks. A lost node in the first epoch, a lost rank in the second; bit for bit the uninterrupted run."""
    finish(start(tmp_path / "whole", *TORCHRUN, "2"))
    again = shutil.copytree(cut, tmp_path / "again", symlinks=True)
    process = start(again, *TORCHRUN, "2")
    saved(process, 8)
    kill_one(process)
    assert "Resumed in epoch 1 at" in finish(start(again, *TORCHRUN, "2"))
    one, other = final(tmp_path / "whole"), final(again)
    assert one["epoch_reports"] == other["epoch_reports"]
    assert [1798.0, 1798.0] == [report["seen"] for report in one["epoch_reports"]]  # 1797 images for two ranks
    assert one["model"].keys() == other["model"].keys()
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


def test_on_more_ranks_the_rest_of_the_epoch_is_not_dropped(cut, tmp_path):
    """Begun on two, killed, ended on three: each epoch has seen each of its 1797 images, by the script's own count."""
    more = shutil.copytree(cut, tmp_path / "more", symlinks=True)
    assert "Resumed in epoch 0 at" in finish(start(more, *TORCHRUN, "3"))
    assert [1797.0, 1797.0] == [report["seen"] for report in final(more)["epoch_reports"]]


def test_the_same_script_runs_on_one_process_without_a_group(tmp_path):
    """Killed once, and moved to another place before it is run again."""
    finish(start(tmp_path / "whole", sys.executable))
    process = start(tmp_path / "cut", sys.executable)
    saved(process, 4)
    kill_all(process)
    os.rename(tmp_path / "cut", tmp_path / "moved")
    assert "Resumed in epoch 0 at" in finish(start(tmp_path / "moved", sys.executable))
    one, other = final(tmp_path / "whole"), final(tmp_path / "moved")
    assert one["epoch_reports"] == other["epoch_reports"]
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
