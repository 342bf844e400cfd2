"""Under torchrun: what its own restarts, its signals and its exit codes mean for a run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import owner
from holdfast.collective import relaunch
from holdfast.collective.relaunch import Launch, MachineStart, find_stop_before
from holdfast.journal import Log

AGENT = {"boot": "b", "pid_space": "p", "pid": 7, "pid_started": "1"}
LATER_AGENT = AGENT | {"pid": 8}
ELSEWHERE = AGENT | {"boot": "c"}
OTHERS = [MachineStart(ELSEWHERE, 0), MachineStart(ELSEWHERE, 1)]


# Which start of which launch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "follows"),
    [
        (Launch("j", 0, AGENT), Launch("j", 1, AGENT), True),
        (Launch("j", 1, AGENT), Launch("j", 1, AGENT), False),
        (Launch("j", 0, AGENT), Launch("k", 1, AGENT), False),
        (Launch("j", 0, AGENT), Launch("j", 1, LATER_AGENT), False),  # a job that was requeued, under its old name
        (Launch("j", 0, AGENT), Launch("j", 1, ELSEWHERE), True),  # rank 0 has moved
        (Launch("none", 0, AGENT), Launch("none", 1, ELSEWHERE), False),  # a name that every launch has
        (Launch("none", 0, AGENT), Launch("none", 1, AGENT), True),
        # One agent has seen its worker fail, and then another was asked to start anew with it.
        (Launch("j", 0, AGENT, [OTHERS[0]]), Launch("j", 0, AGENT, [OTHERS[1]]), True),
        (Launch("none", 0, AGENT, [OTHERS[0]]), Launch("none", 1, ELSEWHERE), True),
        (Launch("j", 0, AGENT, [OTHERS[0]]), Launch("j", 0, AGENT, [OTHERS[0]]), False),
        (Launch("j", 0, AGENT), Launch("j", 1, AGENT, [OTHERS[0]]), False),  # stopped because a machine has joined
        (Launch("j", 0, AGENT, [OTHERS[0]]), Launch("j", 1, ELSEWHERE | {"pid": 8}), False),
    ],
)
def test_a_start_follows_another_of_the_same_launch_only(before, now, follows):
    """The name of a launch need not be its own: the agent tells launches apart, where it can be compared."""
    assert follows is now.follows(before)


def a_log(*events):
    return Log(1, Path(), [{"event": "begin"}, *events])


LAUNCHED = {"event": "launched", "launch": {"id": "j", "restart": 0, "agent": AGENT}}
STOP = {"event": "stop", "reason": "SIGTERM", "step": 5}


@pytest.mark.parametrize(
    ("logs", "found"),
    [
        ([], False),
        ([a_log(LAUNCHED, STOP)], True),
        ([a_log(LAUNCHED, STOP, {"event": "requeued"})], True),
        ([a_log(LAUNCHED, {"event": "failed"})], False),  # a rank was lost: the run goes on
        ([a_log(LAUNCHED)], False),
        ([a_log(STOP)], False),  # not torchrun's
        ([a_log(LAUNCHED, STOP), a_log(LAUNCHED)], False),
        ([a_log({"event": "launched", "launch": "?"}, STOP)], False),
    ],
)
def test_only_a_stop_that_is_the_last_word_counts(logs, found):
    """Of a start of this very launch."""
    assert found == (find_stop_before(logs, Launch("j", 1, AGENT)) is not None)


def test_outside_of_torchrun_there_is_no_launch(monkeypatch):
    """Nothing is noted, and nothing is asked."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert relaunch.current_launch() is None


def test_the_agent_is_found_above_a_shell(monkeypatch):
    """torchrun may start a script that starts the program: that shell is another one each time."""
    asks = "from holdfast.collective import relaunch; print(relaunch.current_launch().agent['pid'])"
    worker = {**os.environ, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
    direct = [sys.executable, "-c", asks]
    through = ["sh", "-c", '"$@"; true', "sh", *direct]
    for words in (direct, through):
        said = subprocess.run(words, env=worker, check=True, capture_output=True, text=True).stdout
        assert os.getpid() == int(said)
    assert owner.describe_process(os.getpid())["pid_started"]
