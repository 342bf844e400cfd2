"""What a run does about the job that it runs in, with a Slurm that small scripts on PATH play."""

import textwrap
import time

import pytest

from holdfast.cluster import job_leader
from job_fakes import in_a_job
from toy import events, launch, script


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    return in_a_job(tmp_path, monkeypatch)


STOPPING = """
    with new_run(RUN, toy, every=None) as run:
        for step in run.steps(100):
            toy.learn(step)
            if step == 3:
                send(sys.argv[1] if len(sys.argv) > 1 else "TERM")
    """


def requeues(fakes):
    return [call for call in fakes.calls if "requeue" in call]


def test_a_run_that_stops_in_a_job_requeues_it_as_its_last_act(tmp_path, fakes):
    """After the user's own `finally`; said, and in the journal, whose attempt counts as stopped all the same."""
    body = f"""
    import atexit
    try:
        {textwrap.indent(textwrap.dedent(STOPPING).strip(), "        ").strip()}
    finally:
        log = {str(fakes._log)!r}
        print("finally", open(log).read().count("requeue") if os.path.exists(log) else 0)
    """
    ended = launch(script(tmp_path, body))
    assert (75, "finally 0\n") == (ended.code, ended.out), ended
    assert ended.err.endswith(f"{tmp_path}/run: job 120: time limit; requeued\n")
    assert ["scontrol requeue 120"] == requeues(fakes)
    assert [("time limit", "120", "SIGTERM", 0)] == [
        (e["cause"], e["job"], e["heard"], e["restart_count"]) for e in events(tmp_path / "run", "requeued")
    ]
    again = launch(
        script(tmp_path, STOPPING.replace("== 3", "== 300")), SLURM_JOB_ID="121"
    )  # another job: it is closed
    assert 0 == again.code, again


def test_only_the_outermost_process_speaks_for_the_job(tmp_path, fakes):
    """Nobody else asks the scheduler for anything, either, but for the end of the time."""
    for where, environment in {
        "under a supervisor": {"HOLDFAST_SUPERVISOR": "/tmp", "HOLDFAST_SUPERVISOR_JOB": "120:0"},
        "in a drill": {"HOLDFAST_DRILL": "{}"},
        "in a process that is not number 0": {"SLURM_PROCID": "1"},
        "in a rank of a launcher's": {"RANK": "2"},
        "outside of a job": {"SLURM_JOB_ID": ""},
    }.items():
        place = tmp_path / where
        place.mkdir()
        ended = launch(script(place, STOPPING), **environment)
        assert 75 == ended.code, (where, ended)
        assert (where, []) == (where, requeues(fakes))
        assert [] == events(place / "run", "requeued")


def test_a_supervisor_of_another_job_does_not_speak_for_this_one(tmp_path, fakes):
    """A job that was submitted from inside a supervised one inherits its environment; so does another start."""
    for number, of in enumerate(("119:0", "120:1", "")):
        (tmp_path / str(number)).mkdir()
        train = script(tmp_path / str(number), STOPPING)
        launch(train, HOLDFAST_SUPERVISOR="/tmp", HOLDFAST_SUPERVISOR_JOB=of)
        assert number + 1 == len(requeues(fakes))


def test_a_supervisor_learns_where_the_run_is(tmp_path, fakes):
    """Also one that only its file announces."""
    (tmp_path / "s").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_SUBMIT_DIR", str(tmp_path))
        with job_leader.announcing_supervisor(tmp_path / "s"):
            ended = launch(script(tmp_path, STOPPING))
    assert 75 == ended.code, ended
    assert tmp_path / "run" == job_leader.reported_run_path(tmp_path / "s")
    assert [] == requeues(fakes)


def test_a_run_that_no_scheduler_has_stopped_is_not_requeued(tmp_path, fakes):
    """It ends, fails, is gone on with in the same process, or its user pressed Ctrl-C, whatever Slurm says."""
    body = textwrap.dedent(STOPPING)
    ends = body.replace("== 3", "== 300")
    fails = body.replace('send(sys.argv[1] if len(sys.argv) > 1 else "TERM")', "raise ValueError(1)")
    again = f"try:\n{textwrap.indent(body, '    ')}\nexcept SystemExit:\n    pass\n{ends}"
    for case, (train, code) in {
        "it ends": (ends, 0),
        "it fails": (fails, 1),
        "it goes on": (again, 0),
        "Ctrl-C": (body, 75),
    }.items():
        (tmp_path / case).mkdir()
        if case == "Ctrl-C":
            fakes.job(JobState="RUNNING", EndTime=time.time() + 30)
        ended = launch(script(tmp_path / case, train), "INT" if case == "Ctrl-C" else "TERM")
        assert (case, code) == (case, ended.code), ended
        assert (case == "Ctrl-C") == ("job 120 was cancelled, and is not requeued" in ended.err), ended
    assert [] == requeues(fakes)


def test_a_forked_child_that_ends_does_not_speak_for_its_parent(tmp_path, fakes):
    """It inherits what is to be done at the end, and leaves it."""
    body = "try:\n" + textwrap.indent(textwrap.dedent(STOPPING), "    ")
    body += "\nexcept SystemExit:\n    if not os.fork():\n        raise\n    os.wait()\n    raise\n"
    assert 75 == launch(script(tmp_path, body)).code
    assert ["scontrol requeue 120"] == requeues(fakes)


def test_the_cap_and_the_hold_are_those_of_the_run(tmp_path, fakes):
    """HOLDFAST_MAX_REQUEUES counts over all attempts; `hold` lies in the run's directory."""
    train = script(tmp_path, STOPPING.replace("step == 3", "run.step % 10 == 3"))
    for _ in range(2):
        launch(train, SLURM_RESTART_COUNT="0", HOLDFAST_MAX_REQUEUES="2")
    ended = launch(train, HOLDFAST_MAX_REQUEUES="2")
    assert "it was requeued 2 times, and 2 are the most" in ended.err
    assert 2 == len(requeues(fakes))
    (tmp_path / "run" / "hold").touch()
    assert f"{tmp_path}/run is on hold, so it is not started" in launch(train).err
    (tmp_path / "run" / "hold").unlink()
    held = f"toy.learn(step); open({str(tmp_path / 'run/hold')!r}, 'w').close()"
    train.write_text(train.read_text().replace("toy.learn(step)", held))
    assert f"is not requeued: {tmp_path}/run is on hold" in launch(train).err
    assert 2 == len(requeues(fakes))


def test_a_restart_that_finds_no_checkpoint_warns(tmp_path, fakes):
    """As in the Mila seed: a directory that is not on every node."""
    train = script(tmp_path, STOPPING)
    first = launch(train)
    assert "warning" not in first.err, first
    assert "start 3 of job 120" not in launch(train, SLURM_RESTART_COUNT="2").err
    (tmp_path / "b").mkdir()
    other = launch(script(tmp_path / "b", STOPPING), SLURM_RESTART_COUNT="2")
    assert "this is start 3 of job 120, and there is no checkpoint of an earlier one" in other.err
