"""Under torchrun: what its own restarts, its signals and its exit codes mean for a run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import journal, owner
from holdfast.journal import Log
from holdfast.run import relaunch
from holdfast.run.relaunch import Launch, stopped_before
from supervised import Supervised, until
from toy import launch, script

AGENT = {"boot": "b", "pid_space": "p", "pid": 7, "pid_started": "1"}
LATER_AGENT = AGENT | {"pid": 8}
ELSEWHERE = AGENT | {"boot": "c"}


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
    assert found == (stopped_before(logs, Launch("j", 1, AGENT)) is not None)


def test_outside_of_torchrun_there_is_no_launch(monkeypatch):
    """Nothing is noted, and nothing is asked."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert relaunch.launch() is None


def test_the_agent_is_found_above_a_shell(monkeypatch):
    """torchrun may start a script that starts the program: that shell is another one each time."""
    asks = "from holdfast.run import relaunch; print(relaunch.launch().agent['pid'])"
    worker = {**os.environ, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
    direct = [sys.executable, "-c", asks]
    through = ["sh", "-c", '"$@"; true', "sh", *direct]
    for words in (direct, through):
        said = subprocess.run(words, env=worker, check=True, capture_output=True, text=True).stdout
        assert os.getpid() == int(said)
    assert owner.process(os.getpid())["pid_started"]


# The real launcher ---------------------------------------------------------------------------------------------------

TRAINS = """
    with new_run(RUN, toy, every=Every(steps=20), keep=Last(3)) as run:
        for step in run.steps(60):
            toy.learn(step)
            print("step", step, flush=True)
            time.sleep(0.05)
    print("value", toy.value, flush=True)
"""


def torchrun(place, *options, body=TRAINS):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", *options, str(script(place, body))]


def told(run):
    """The last word of each attempt."""
    return [log.last["event"] if log.closed else None for log in journal.logs(run)]


@pytest.mark.slow
def test_a_stopped_run_does_not_go_on_when_torchrun_starts_it_again(tmp_path):
    """Its machine is being taken away: each restart leaves at once, with 75 again, and the next launch goes on."""
    place = torchrun(tmp_path, "--max-restarts", "2")
    with subprocess.Popen(place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launched:
        for line in launched.stdout:
            if line.startswith("step 7"):
                os.kill(journal.logs(tmp_path / "run")[-1].owner["pid"], signal.SIGTERM)
                break
        rest = launched.stdout.read()
    assert 1 == launched.returncode
    assert ["stop"] * 3 == told(tmp_path / "run")
    steps = {log.last["step"] for log in journal.logs(tmp_path / "run")}
    assert 1 == len(steps)
    assert 2 == rest.count("does not go on here; run me again")
    done = subprocess.run(place, check=True, capture_output=True, text=True)
    assert launch(script(tmp_path, TRAINS.replace("RUN", repr(str(tmp_path / "elsewhere"))))).out.endswith(
        done.stdout.splitlines()[-1] + "\n"
    )


@pytest.mark.slow
def test_a_run_whose_rank_was_killed_goes_on_when_torchrun_starts_it_again(tmp_path):
    """A failure is no stop: one launch sees it through."""
    place = torchrun(tmp_path, "--max-restarts", "1")
    with subprocess.Popen(place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launched:
        for line in launched.stdout:
            if line.startswith("step 30"):
                os.kill(journal.logs(tmp_path / "run")[-1].owner["pid"], signal.SIGKILL)
                break
        rest = launched.stdout.read()
    assert 0 == launched.returncode
    assert [None, "end"] == told(tmp_path / "run")
    assert "resumes at step 20" in rest


@pytest.mark.slow
def test_the_supervisor_carries_a_launch_on_that_has_used_up_its_restarts_on_a_stop(tmp_path):
    """1 of torchrun, and a run whose last word is stop: started again, and done."""
    with Supervised(tmp_path, torchrun(tmp_path, "--max-restarts", "1")) as it:
        until(lambda: it.printed.count("step") > 7, "steps")
        os.kill(journal.logs(tmp_path / "run")[-1].owner["pid"], signal.SIGTERM)
        assert 0 == it.end()
    assert ["stop", "stop", "end"] == told(tmp_path / "run")
    assert [(1, "stopped"), (0, "done")] == [(e["code"], e["verdict"]) for e in it.events("exit")]
