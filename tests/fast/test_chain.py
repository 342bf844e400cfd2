"""A chain: the task that finishes the work ends the rest; what cannot be cancelled ends by itself."""

import time
from types import SimpleNamespace

import pytest

from fakes import Fakes
from holdfast import Store, owner
from holdfast.cluster import chain
from holdfast.errors import UsageError
from holdfast.job import Job
from holdfast.run import stop
from holdfast.supervise.place import JOURNAL, supervisors_maybe_alive, wait_for_earlier_tasks
from job_fakes import earlier

# The task before is still ending -------------------------------------------------------------------------------


def test_a_wait_has_its_limit(tmp_path, monkeypatch):
    """KillWait and a minute, or what Slurm sets by default; then whoever is there may be running, as ever."""
    fakes, here = Fakes(tmp_path, monkeypatch), Job("slurm", "7_2", 0, "7", "2")
    fakes.job(JobState="COMPLETING")
    fakes.say("scontrol show config", "KillWait = 10 sec\n")
    assert 70 == chain.patience_s()
    fakes.say("scontrol show config", err="no", code=1)
    assert 90 == chain.patience_s()
    earlier(tmp_path)
    monkeypatch.setattr(chain, "patience_s", lambda: 0.3)
    monkeypatch.setattr(chain, "LOOK_S", 0.1)
    wait_for_earlier_tasks(tmp_path / "d", here)
    assert 1 == len(supervisors_maybe_alive(tmp_path / "d" / JOURNAL))


def test_a_run_without_a_supervisor_waits_as_well(tmp_path, monkeypatch, capsys):
    """An array of a hand-written script: the attempt of the task before may still be saving."""
    fakes = Fakes(tmp_path, monkeypatch)
    fakes.job(JobState="COMPLETING")
    fakes.say("scontrol show config", "KillWait = 10 sec\n")
    for name, value in {"JOB_ID": "101", "ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(owner, "proven_gone", lambda *_: False)
    monkeypatch.setattr(owner, "is_me", lambda _: False)
    before = Store(tmp_path / "run")
    before.save({"x": 1}, step=1)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    with pytest.raises(UsageError, match="attempt 1 may still be running"):
        Store(tmp_path / "run").claim()
    looks = []

    def ends(_):
        looks.append(1)
        if len(looks) == 2:
            fakes.job(JobState="TIMEOUT")

    monkeypatch.setattr(chain, "time", SimpleNamespace(monotonic=time.monotonic, sleep=ends))
    stop.wait_for_earlier_task(tmp_path / "run", Job("slurm", "7_2", 0, "7", "2"))
    assert 1 == capsys.readouterr().err.count("task 1 of this array is still ending")
    assert 2 == Store(tmp_path / "run").claim().number
    assert 2 == len(looks)
    assert {"scontrol show job 7_1", "scontrol show config"} == set(fakes.calls)


def test_a_slurm_that_does_not_answer_proves_nothing(tmp_path, monkeypatch):
    """The wait goes on."""
    Fakes(tmp_path, monkeypatch).say("scontrol show", err="Unable to contact slurm controller", code=1)
    assert not chain.has_ended({"job": {"id": "7", "array_task": "1"}}, Job("slurm", "7_2", 0, "7", "2"))
