"""The example of a cycling_utils user on several ranks: killed under torchrun and run again, it ends with the same
bytes.
"""

import os
import shutil
import signal
import sys

import pytest

from compat_example import final, finish, kill_all, same, saved, start
from holdfast import owner
from holdfast.children import processes

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


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
    ranks = [pid for pid in processes.descendants(process.pid) if owner.parent_pid(pid) == process.pid]
    assert len(ranks) == 2
    os.kill(ranks[-1], signal.SIGKILL)  # a lost rank: the launcher ends the other
    process.communicate()
    assert process.returncode == 1
    assert "Resumed in epoch 1 at" in finish(start(again, *TORCHRUN, "2"))
    whole = same(tmp_path / "whole", again)
    assert [1798.0, 1798.0] == [report["seen"] for report in whole["epoch_reports"]]  # 1797 images for two ranks


def test_on_more_ranks_the_rest_of_the_epoch_is_not_dropped(cut, tmp_path):
    """Begun on two, killed, ended on three: each epoch has seen each of its 1797 images, by the script's own count."""
    more = shutil.copytree(cut, tmp_path / "more", symlinks=True)
    assert "Resumed in epoch 0 at" in finish(start(more, *TORCHRUN, "3"))
    assert [1797.0, 1797.0] == [report["seen"] for report in final(more)["epoch_reports"]]
