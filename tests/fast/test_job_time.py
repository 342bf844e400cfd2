"""What a run does about the end of the job that it runs in and about its grace, with a Slurm that small scripts
play.
"""

import os
import random
import signal
import time

import pytest

from holdfast.errors import Stopped
from holdfast.run import stop
from holdfast.run.stop import ONCE_DONE, StopRequest, restore_signal_handling
from job_fakes import in_a_job
from toy import Toy, new_run, waited_for


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    return in_a_job(tmp_path, monkeypatch)


def looked(run, condition):
    """Let safe points pass until the condition holds."""

    def look():
        run._session.job_clock.update_job_end(save_s=run._session.saves.save_s, step_s=run._session.progress.step_s)
        return condition(run._session.job_clock)

    waited_for(look)


def test_the_end_of_the_job_is_the_deadline(tmp_path, fakes):
    """A moment earlier, and not the same one for every job. The random numbers of the script are not touched."""
    fakes.say("squeue", "1:00:00\n")
    random.seed(7)
    before = random.getstate()
    with new_run(tmp_path / "run", Toy()) as run:
        looked(run, lambda here: here.watch.end_s is not None)
        left_s = run._session.stop.deadline_s - time.time()
        run._session.stop.reason_to_stop(save_s=0, step_s=0)
        assert before == random.getstate()
    assert 3600 - 12 < left_s < 3601


def test_a_deadline_of_the_users_own_stays(tmp_path, fakes):
    """Then nobody asks."""
    fakes.say("squeue", "1:00:00\n")
    mine = time.time() + 7200
    with new_run(tmp_path / "run", Toy(), deadline=mine) as run:
        looked(run, lambda here: here.watch.preempt_s is not None)
        assert mine == run._session.stop.deadline_s
    assert not any("squeue" in call for call in fakes.calls)


@pytest.mark.parametrize(
    ("grace_s", "heard", "left_s"),
    [(10, "SIGTERM", 30 - 5), (10, "SIGUSR1", 10), (7200, "SIGUSR1", 3600), (10, "SIGINT", 3600)],
)
def test_how_long_the_process_may_use_its_time_is_known(tmp_path, fakes, grace_s, heard, left_s):
    """Until the job's end; after SIGTERM until SIGKILL, after a notice until a preempted job is killed."""
    fakes.say("squeue", "1:00:00\n")
    fakes.say("scontrol show partition", f"PartitionName=spot\n   GraceTime={grace_s} Hidden=NO\n")
    with pytest.raises(Stopped), new_run(tmp_path / "run", Toy()) as run:
        clock, stop = run._session.job_clock, run._session.stop
        assert clock.must_exit_by() == float("inf")
        looked(run, lambda here: None not in (here.watch.kill_wait_s, here.watch.preempt_s, here.watch.end_s))
        assert 3600 - 15 < clock.must_exit_by() - time.time() < 3600
        stop.receive_from_rank(heard)
        early_s = 15 if left_s == 3600 else 0  # jobs end at different moments before their time is over
        assert left_s - early_s - 1.5 < clock.must_exit_by() - stop.at_s < left_s


@pytest.mark.parametrize(
    ("script", "save_s", "told"),
    [
        ("", 20.0, ""),
        ("", 41.0, "the grace after SIGTERM is 30 s (KillWait). Ask for a notice: #SBATCH --signal=B:USR1@94"),
        ("#SBATCH --signal=B:USR1@300", 41.0, ""),
        ("#SBATCH --signal=B:USR1@40", 41.0, "(KillWait), and the job's notice comes 40 s before its end. Ask for an"),
    ],
)
def test_a_save_that_takes_longer_than_the_grace_is_said(tmp_path, fakes, capsys, script, save_s, told):
    """From what earlier saves took, or the first one of this attempt; once. Not where the job's own notice will do."""
    fakes.say("scontrol write batch_script", f"#!/bin/bash\n{script}\n")
    with new_run(tmp_path / "run", Toy()) as run:
        run._session.saves.save_s, run._session.progress.step_s = save_s, 1.0
        looked(run, lambda here: here.watch.kill_wait_s is not None)
        if save_s > 30:
            looked(run, lambda here: here.watch.lead_s is not None)
        for _ in range(3):
            looked(run, lambda here: True)
    said = capsys.readouterr().err
    assert bool(told) == said.count("a save takes 41 s and a step 1 s")
    assert told in said


def test_a_notice_leaves_jobs_to_save_one_after_the_other(tmp_path, fakes):
    """Within a part of the time that the save does not need; after SIGTERM, with no second chance, within a small
    one.
    """
    fakes.say("squeue", "2:00\n")
    with new_run(tmp_path / "run", Toy()) as run:
        session = run._session
        session.saves.save_s = session.progress.step_s = 1.0
        looked(run, lambda here: here.watch.end_s is not None and here.watch.preempt_s is not None)
        spare = session.stop.spare_s
    assert 25 < spare["SIGUSR1"] == spare["SIGUSR2"] <= 30
    assert 3 < spare["SIGTERM"] <= 4


def test_500_jobs_do_not_save_in_the_same_second():
    """Each draws its own moment."""
    moments = []
    for _ in range(500):
        stop = StopRequest()
        stop.spare_s = {"SIGUSR1": 20.0}
        stop._on_signal(signal.SIGUSR1, None)
        stop.reason_to_stop(save_s=0, step_s=0)
        assert stop._until_s is not None
        moments.append(int(stop._until_s - stop.at_s))
    assert max(moments.count(second) for second in set(moments)) < 60
    assert set(range(20)) == set(moments)


def test_a_second_signal_and_a_near_end_wait_no_longer():
    """Whoever presses is heard."""
    for press in (
        lambda stop: stop._on_signal(signal.SIGTERM, None),
        lambda stop: setattr(stop, "deadline_s", time.time()),
    ):
        stop = StopRequest()
        stop.spare_s = {"SIGUSR1": 1e6}
        stop._on_signal(signal.SIGUSR1, None)
        assert stop.reason_to_stop(save_s=0, step_s=0) is None
        press(stop)
        assert "SIGUSR1" == stop.reason_to_stop(save_s=0, step_s=0)


def test_a_process_is_deaf_after_its_stop_and_hears_again_in_its_next_run(tmp_path, fakes):
    """Only where it would have been ended; handlers of the user's own come back."""
    mine = lambda number, frame: None
    handlers = (signal.SIG_DFL, signal.SIG_DFL, mine)  # whatever an earlier test of this process has left
    previous = [signal.signal(number, handler) for number, handler in zip(ONCE_DONE, handlers, strict=True)]
    try:
        with pytest.raises(SystemExit), new_run(tmp_path / "run", Toy()) as run:
            for _ in run.steps(5):
                os.kill(os.getpid(), signal.SIGTERM)
        assert [signal.SIG_IGN, signal.SIG_IGN, mine] == [signal.getsignal(number) for number in ONCE_DONE]
        stop.drop_pending_requeue()
        assert [signal.SIG_DFL, signal.SIG_DFL, mine] == [signal.getsignal(number) for number in ONCE_DONE]
    finally:
        restore_signal_handling()
        for number, handler in zip(ONCE_DONE, previous, strict=True):
            signal.signal(number, handler)
