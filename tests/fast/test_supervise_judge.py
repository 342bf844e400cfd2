"""What follows when a command has ended: the whole table, without a process."""

import pytest

from holdfast.cluster.cause import BAD_NODE
from holdfast.supervise.judge import (
    CommandAttempt,
    decide_next_step,
    describe_exit_code,
    exit_code,
    was_interrupted_at_exit,
)
from holdfast.supervise.place import directory_name_for

DONE = CommandAttempt("done", 0, 5.0)
AGAIN = CommandAttempt("stopped", 75, 60.0)
QUICK = CommandAttempt("stopped", 75, 0.1)
CRASH = CommandAttempt("failed", 1, 60.0)
KILLED = CommandAttempt("failed", -9, 60.0)


def follows(*attempts, **limits):
    return decide_next_step(attempts, **limits).do


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (DONE, "done"),
        (AGAIN, "again"),
        (CRASH, "fail"),
        (KILLED, "fail"),
        (CommandAttempt("stopped", 1, 60.0), "again"),  # torchrun's 1, seen through
        (DONE._replace(told="SIGTERM"), "done"),  # it was done before it heard
        (AGAIN._replace(told="SIGTERM"), "leave"),
        (KILLED._replace(told="SIGTERM"), "leave"),
        (CRASH._replace(told="SIGTERM"), "leave"),  # of a launcher, this means nothing
        (CRASH._replace(told="SIGTERM", failed=True), "fail"),  # of the run itself, it does
        (KILLED._replace(told="SIGTERM", failed=True), "leave"),  # we killed it
        (AGAIN._replace(reason="deadline"), "leave"),
        (AGAIN._replace(reason="drill limit"), "leave"),
        (AGAIN._replace(reason="SIGUSR1"), "again"),  # somebody told the command alone
        (AGAIN._replace(late=True), "leave"),
        (AGAIN._replace(held=True), "leave"),
        (CommandAttempt("damaged", 1, 1.0), "again"),  # from an older checkpoint
    ],
)
def test_one_attempt(attempt, expected):
    """Without retries."""
    assert expected == follows(attempt)


def test_why_it_is_started_again():
    """75 asks for it, and so does a run's journal; anything else has stopped early."""
    assert "it asked to be run again" == decide_next_step([AGAIN]).why
    assert "it asked to be run again" == decide_next_step([CommandAttempt("stopped", 1, 60.0, reason="SIGUSR1")]).why
    assert "it stopped early" == decide_next_step([CommandAttempt("stopped", 0, 60.0)]).why
    lacks = CommandAttempt("stopped", 0, 60.0, lacks="result was not written")
    assert "`finished` does not hold: result was not written" == decide_next_step([lacks]).why


def test_crashes_are_retried_as_often_as_was_said():
    """Killed by a signal counts as well; a held run is not tried again."""
    assert ["retry", "retry", "fail"] == [follows(*n * [CRASH], retries=2) for n in (1, 2, 3)]
    assert ["retry", "fail"] == [follows(*n * [KILLED], retries=1) for n in (1, 2)]
    assert "fail" == follows(CRASH._replace(held=True), retries=2)


def test_a_crash_after_a_gain_is_the_first():
    """--retries counts crashes between two gains."""
    gained = CRASH._replace(progressed=True)
    stuck = CRASH._replace(progressed=False)
    assert "retry" == follows(*9 * [gained], retries=1)
    assert "retry" == follows(stuck, gained, retries=1)
    assert "fail" == follows(gained, stuck, stuck, retries=1)


def test_a_bad_node_is_tried_once_more_and_then_left():
    """Whatever --retries says. Where the job cannot leave it, it is a crash like others."""
    bad = CRASH._replace(cause=BAD_NODE, node="n1")
    assert ("again", "its node may be at fault", 5.0) == decide_next_step([bad._replace(node_deaths=1)])
    assert ("leave", BAD_NODE) == decide_next_step([bad._replace(node_deaths=2)], retries=9)[:2]
    assert "fail" == follows(bad)
    assert "retry" == follows(bad, retries=1)
    assert "fail" == follows(bad._replace(node_deaths=1, late=True))
    behind = bad._replace(cause="error", behind="step-000000006")
    assert "again" == follows(behind)
    assert "fail" == decide_next_step([behind._replace(progressed=False)] * 10)[0]
    slow = bad._replace(node_deaths=1, took_s=2400.0, progressed=None)  # each dies long after the one before
    assert ["again", "fail"] == [decide_next_step([slow] * count)[0] for count in (1, 2)]
    assert "leave" == follows(bad._replace(node_deaths=1, told="SIGTERM"))


def test_waits_grow_and_have_an_end():
    """None, 1, 2, 4 ... 300 s between crashes; nothing but a moment after 75, unless nothing ever comes of it."""
    waits = [decide_next_step([CRASH] * n, retries=99, no_progress=99).wait_s for n in range(1, 13)]
    assert [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] == waits
    assert 0 == decide_next_step([AGAIN]).wait_s
    assert [0.05, 0.1, 0.2] == [round(decide_next_step([QUICK] * n).wait_s, 3) for n in (1, 2, 3)]
    assert 0 == decide_next_step([QUICK, QUICK._replace(progressed=True)]).wait_s


def test_attempts_that_get_no_further_are_ended():
    """Quick ones of which nothing is known, and any of which it is known."""
    assert ["again", "again", "fail"] == [follows(*n * [QUICK], no_progress=3) for n in (1, 2, 3)]
    stuck = AGAIN._replace(progressed=False)
    assert "fail" == follows(*3 * [stuck], no_progress=3)
    assert "again" == follows(stuck, stuck, AGAIN._replace(progressed=True), no_progress=3)
    assert "again" == follows(*30 * [AGAIN], no_progress=3)
    crashed = CRASH._replace(progressed=False)
    assert "fail" == follows(*3 * [crashed], retries=99, no_progress=3)


def test_signals_and_lost_nodes_are_nobodys_fault():
    """They do not count as attempts that got no further, nor are the others forgotten."""
    signalled = AGAIN._replace(progressed=False, reason="SIGTERM")
    killed = KILLED._replace(progressed=False)
    crashed = CRASH._replace(progressed=False)
    assert "again" == follows(*30 * [signalled], no_progress=3)
    assert "retry" == follows(*30 * [killed], retries=99, no_progress=3)
    assert "retry" == follows(crashed, killed, crashed, retries=99, no_progress=3)
    assert "fail" == follows(crashed, killed, crashed, crashed, retries=99, no_progress=3)


def test_exit_codes():
    """Ours is 75 when the work can go on later; else what a shell says of the command. Words name the signal."""
    assert 75 == exit_code(AGAIN, resumable=False) == exit_code(KILLED, resumable=True)
    assert (137, 1) == (exit_code(KILLED, resumable=False), exit_code(CRASH, resumable=False))
    assert ["exit 3", "killed by SIGSEGV", "killed by signal 40"] == [
        describe_exit_code(code) for code in (3, -11, -40)
    ]


Ended = tuple[int, str | None, float, str]  # code, what it was told and when, the last event


def test_ctrl_c_while_it_was_leaving():
    """The run's journal says that it has ended, a moment before: there was nothing left to interrupt."""
    left: list[Ended] = [(-2, "SIGINT", 101.0, "end"), (130, "SIGINT", 99.0, "end")]
    others: list[Ended] = [
        (1, "SIGINT", 101.0, "end"),
        (-9, "SIGINT", 101.0, "end"),
        (-15, "SIGTERM", 101.0, "end"),
        (-2, "SIGINT", 160.0, "end"),  # it was at work on something else by then
        (-2, "SIGINT", 101.0, "stop"),
        (-2, None, 0.0, "end"),
    ]
    assert left == [each for each in left + others if was_interrupted_at_exit(*each, 100.0)]


def test_the_name_that_people_would_give_it(monkeypatch):
    """Of the default directory; in a job, with the job's id, so that 20 jobs from one directory do not meet."""
    names = {
        "python train.py --lr 0.1": "train",
        "/usr/bin/python3.11 -u scripts/fit.py": "fit",
        "torchrun --nproc-per-node 2 train.py": "train",
        "srun python train.py": "train",
        "bash -c true": "bash",
        "env A=1 python a.py": "a",
        "./simulate input.dat": "simulate",
        "gmx mdrun -deffnm run": "gmx",
        "python": "python",
        "../..": "job",
    }
    for job, suffix in (("", ""), ("77", "-77")):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        for command, name in names.items():
            assert name + suffix == directory_name_for(command.split()), command
