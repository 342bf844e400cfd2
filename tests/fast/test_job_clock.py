"""What a run does about the job that it runs in, with a Slurm that small scripts on PATH play."""

import os
import random
import signal
import textwrap
import time

import pytest

from fakes import Fakes
from holdfast.cluster import job_leader, watch
from holdfast.run import job_clock
from holdfast.run.stop import ONCE_DONE, Stop, hear_again
from toy import Toy, events, launch, new_run, script


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM", "HOLDFAST")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(watch, "FIRST_S", 0)
    monkeypatch.setenv("SLURM_JOB_ID", "120")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "spot")
    fakes = Fakes(tmp_path, monkeypatch)
    fakes.job(JobState="COMPLETING", Reason="TimeLimit")
    fakes.say("scontrol requeue")
    fakes.say("scontrol write", "#!/bin/sh\n#SBATCH --signal=B:USR1@120\n")
    fakes.say("scontrol show config", "KillWait                = 30 sec\n")
    fakes.say("scontrol show partition", "PartitionName=spot\n   GraceTime=10 Hidden=NO\n")
    fakes.say("squeue", "UNLIMITED\n")
    return fakes


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
        print("finally", open({str(fakes._log)!r}).read().count("requeue") if os.path.exists({str(fakes._log)!r}) else 0)
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


OTHERWISE = {
    "under a supervisor": {"HOLDFAST_SUPERVISOR": "/tmp", "HOLDFAST_SUPERVISOR_JOB": "120:0"},
    "in a drill": {"HOLDFAST_DRILL": "{}"},
    "in a process that is not number 0": {"SLURM_PROCID": "1"},
    "in a rank of a launcher's": {"RANK": "2"},
    "outside of a job": {"SLURM_JOB_ID": ""},
}


@pytest.mark.parametrize("where", OTHERWISE)
def test_only_the_outermost_process_speaks_for_the_job(tmp_path, fakes, where):
    """Nobody else asks the scheduler for anything, either, but for the end of the time."""
    ended = launch(script(tmp_path, STOPPING), **OTHERWISE[where])
    assert 75 == ended.code, ended
    assert [] == requeues(fakes)
    assert [] == events(tmp_path / "run", "requeued")


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
        with job_leader.announced(tmp_path / "s"):
            ended = launch(script(tmp_path, STOPPING))
    assert 75 == ended.code, ended
    assert tmp_path / "run" == job_leader.run_of(tmp_path / "s")
    assert [] == requeues(fakes)


def test_ctrl_c_in_a_job_is_the_users_own_wish(tmp_path, fakes):
    """Not requeued, whatever Slurm says."""
    fakes.job(JobState="RUNNING", EndTime=time.time() + 30)
    ended = launch(script(tmp_path, STOPPING), "INT")
    assert 75 == ended.code
    assert "job 120 was cancelled, and is not requeued" in ended.err
    assert [] == requeues(fakes)


def test_a_run_that_ends_requeues_nothing(tmp_path, fakes):
    """Nor one that fails."""
    (tmp_path / "b").mkdir()
    assert 0 == launch(script(tmp_path / "b", STOPPING.replace("== 3", "== 300"))).code
    failing = STOPPING.replace('send(sys.argv[1] if len(sys.argv) > 1 else "TERM")', "raise ValueError(1)")
    assert 1 == launch(script(tmp_path, failing)).code
    assert [] == requeues(fakes)


def test_a_stop_that_another_run_of_the_process_follows_requeues_nothing(tmp_path, fakes):
    """What stopped was gone on with here."""
    body = textwrap.dedent(STOPPING)
    again = body.replace("== 3", "== 300")
    both = f"try:\n{textwrap.indent(body, '    ')}\nexcept SystemExit:\n    pass\n{again}"
    ended = launch(script(tmp_path, both))
    assert 0 == ended.code, ended
    assert [] == requeues(fakes)


def test_signals_that_come_after_the_stop_do_not_keep_the_job_from_its_requeue(tmp_path, fakes):
    """Slurm sends SIGTERM twice to a step; a notice is followed by it."""
    late = f"""
    import atexit
    try:
        {textwrap.indent(textwrap.dedent(STOPPING).strip(), "        ").strip()}
    finally:
        atexit.register(lambda: [send(name) for name in ("TERM", "USR1", "USR2")])
    """
    ended = launch(script(tmp_path, late))
    assert 75 == ended.code, ended
    assert ["scontrol requeue 120"] == requeues(fakes)


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


# -- the end and the grace ------------------------------------------------------------------------------------------


def looked(run, condition):
    """Let safe points pass until the condition holds."""
    for _ in range(300):
        run._session.job_clock.look(save_s=run._session.saves.save_s, step_s=run._session.progress.step_s)
        if condition(run._session.job_clock):
            return
        time.sleep(0.01)
    raise AssertionError("the scheduler's answer did not come")


def test_the_end_of_the_job_is_the_deadline(tmp_path, fakes):
    """A moment earlier, and not the same one for every job. The random numbers of the script are not touched."""
    fakes.say("squeue", "1:00:00\n")
    random.seed(7)
    before = random.getstate()
    with new_run(tmp_path / "run", Toy()) as run:
        looked(run, lambda here: here.ends.end_s is not None)
        left_s = run._session.stop.deadline_s - time.time()
        run._session.stop.wanted(save_s=0, step_s=0)
        assert before == random.getstate()
    assert 3600 - 12 < left_s < 3601


def test_a_deadline_of_the_users_own_stays(tmp_path, fakes):
    """Then nobody asks."""
    fakes.say("squeue", "1:00:00\n")
    mine = time.time() + 7200
    with new_run(tmp_path / "run", Toy(), deadline=mine) as run:
        looked(run, lambda here: here.grace.preempt_s is not None)
        assert mine == run._session.stop.deadline_s
    assert not any("squeue" in call for call in fakes.calls)


def test_a_save_that_takes_longer_than_the_grace_is_said(tmp_path, fakes, capsys):
    """From what earlier saves took, or the first one of this attempt; once."""
    with new_run(tmp_path / "run", Toy()) as run:
        run._session.saves.save_s, run._session.progress.step_s = 41.0, 1.0
        looked(run, lambda here: here.grace.kill_wait_s is not None)
        looked(run, lambda here: True)
    said = capsys.readouterr().err
    assert 1 == said.count("a save takes 41 s and a step 1 s, and the grace after SIGTERM is 30 s (KillWait)")
    assert "#SBATCH --signal=B:USR1@120" in said


def test_a_save_within_the_grace_is_not_talked_about(tmp_path, fakes, capsys):
    """The usual."""
    with new_run(tmp_path / "run", Toy()) as run:
        run._session.saves.save_s, run._session.progress.step_s = 20.0, 1.0
        looked(run, lambda here: here.grace.kill_wait_s is not None)
    assert "KillWait" not in capsys.readouterr().err


def test_a_notice_leaves_jobs_to_save_one_after_the_other(tmp_path, fakes):
    """Within a part of the time that the save does not need; after SIGTERM, with no second chance, within a small one."""
    fakes.say("squeue", "2:00\n")
    with new_run(tmp_path / "run", Toy()) as run:
        session = run._session
        session.saves.save_s = session.progress.step_s = 1.0
        looked(run, lambda here: here.ends.end_s is not None and here.grace.preempt_s is not None)
        spare = session.stop.spare_s
    assert 25 < spare["SIGUSR1"] == spare["SIGUSR2"] <= 30
    assert 3 < spare["SIGTERM"] <= 4


def test_500_jobs_do_not_save_in_the_same_second():
    """Each draws its own moment."""
    moments = []
    for _ in range(500):
        stop = Stop()
        stop.spare_s = {"SIGUSR1": 20.0}
        stop._on_signal(signal.SIGUSR1, None)
        stop.wanted(save_s=0, step_s=0)
        moments.append(int(stop._until_s - stop.at_s))
    assert max(moments.count(second) for second in set(moments)) < 60
    assert set(range(20)) == set(moments)


def test_a_second_signal_and_a_near_end_wait_no_longer():
    """Whoever presses is heard."""
    for press in (
        lambda stop: stop._on_signal(signal.SIGTERM, None),
        lambda stop: setattr(stop, "deadline_s", time.time()),
    ):
        stop = Stop()
        stop.spare_s = {"SIGUSR1": 1e6}
        stop._on_signal(signal.SIGUSR1, None)
        assert stop.wanted(save_s=0, step_s=0) is None
        press(stop)
        assert "SIGUSR1" == stop.wanted(save_s=0, step_s=0)


def test_a_process_is_deaf_after_its_stop_and_hears_again_in_its_next_run(tmp_path, fakes):
    """Only where it would have been ended; handlers of the user's own come back."""
    mine = lambda number, frame: None
    previous = signal.signal(signal.SIGUSR2, mine)
    try:
        with pytest.raises(SystemExit), new_run(tmp_path / "run", Toy()) as run:
            for _ in run.steps(5):
                os.kill(os.getpid(), signal.SIGTERM)
        assert [signal.SIG_IGN, signal.SIG_IGN, mine] == [signal.getsignal(number) for number in ONCE_DONE]
        job_clock.forget()
        assert [signal.SIG_DFL, signal.SIG_DFL, mine] == [signal.getsignal(number) for number in ONCE_DONE]
    finally:
        signal.signal(signal.SIGUSR2, previous)
        hear_again()
