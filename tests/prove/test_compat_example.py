"""The example of a cycling_utils user: killed and run again, it ends with the same bytes. tests/prove has it on
several ranks.
"""

import os
import sys

from compat_example import finish, kill_all, same, saved, start


def test_the_same_script_runs_on_one_process_without_a_group(tmp_path):
    """Killed once, and moved to another place before it is run again."""
    finish(start(tmp_path / "whole", sys.executable))
    process = start(tmp_path / "cut", sys.executable)
    saved(process, 4)
    kill_all(process)
    os.rename(tmp_path / "cut", tmp_path / "moved")
    assert "Resumed in epoch 0 at" in finish(start(tmp_path / "moved", sys.executable))
    same(tmp_path / "whole", tmp_path / "moved")
