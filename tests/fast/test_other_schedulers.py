"""Other schedulers than Slurm: what their environment says, and what makes each start a job again. Fake executables."""

import pytest

from fakes import Fakes
from holdfast import job as jobs
from holdfast.cluster import other
from holdfast.cluster.cause import StopNotice
from holdfast.cluster.requeue import Requeue
from holdfast.errors import Superseded
from holdfast.job import Job, job

ENVIRONMENTS = {
    "lsf": (
        {"LSB_JOBID": "120", "LSB_JOBINDEX": "0", "LSB_DJOB_NUMPROC": "8"},
        Job("lsf", "120", 0, processes=8),
    ),
    "lsf, started again": ({"LSB_JOBID": "120", "LSB_JOBINDEX": "0", "LSB_RESTART": "Y"}, Job("lsf", "120", 1)),
    "lsf, array": ({"LSB_JOBID": "120", "LSB_JOBINDEX": "3"}, Job("lsf", "120[3]", 0, "120", "3")),
    "pbs": ({"PBS_JOBID": "120.head"}, Job("pbs", "120.head", 0)),
    "pbs, array": ({"PBS_JOBID": "120[3].head", "PBS_ARRAY_INDEX": "3"}, Job("pbs", "120[3].head", 0, None, "3")),
    "sge": (
        {"JOB_ID": "120", "SGE_TASK_ID": "undefined", "RESTARTED": "0", "NHOSTS": "2"},
        Job("sge", "120", 0, nodes=2),
    ),
    "sge, array, started again": (
        {"JOB_ID": "120", "SGE_TASK_ID": "3", "RESTARTED": "1"},
        Job("sge", "120.3", 1, "120", "3"),
    ),
    "flux": (
        {"FLUX_JOB_ID": "120", "FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "FLUX_JOB_NNODES": "2"},
        Job("flux", "120", 0, None, None, 1, 4, 2),
    ),
    "kubernetes": (
        {"HOSTNAME": "train-3-x7k2p", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"},
        Job("kubernetes", "train-3-x7k2p", 0, None, "3"),
    ),
    "flux inside of slurm": ({"SLURM_JOB_ID": "7", "FLUX_JOB_ID": "120"}, Job("slurm", "7", 0)),
    "a variable of somebody else's": ({"JOB_ID": "nightly", "HOSTNAME": "box"}, None),
}


def test_the_job_is_read_from_the_environment():
    """Each scheduler by its own names; a common name alone proves nothing."""
    for case, (environment, expected) in ENVIRONMENTS.items():
        assert expected == job(environment), case


def test_every_scheduler_but_slurm_has_a_rule():
    """A name in one table is a name in the other."""
    assert {"slurm", *other.RULES} == {*jobs.SCHEDULERS}


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    return Fakes(tmp_path, monkeypatch)


def here(scheduler, identity="120"):
    return Job(scheduler, identity, 0)


def onward(scheduler, what, identity="120"):
    """What becomes of a job: how, and the line."""
    done = Requeue(here(scheduler, identity), StopNotice(what, 0.0), lambda *_, **__: None).continue_job()
    return done.how, done.line


def test_a_limit_requeues_by_command_with_the_id_as_it_takes_it(fakes):
    commands = {"pbs": ("qrerun 120.head", "120.head"), "lsf": ("brequeue -r 120[3]", "120[3]")}
    for scheduler, (command, identity) in commands.items():
        fakes.say(command)
        for what in ("deadline", "SIGUSR1"):
            assert ("requeued", f"job {identity}: requeued") == onward(scheduler, what, identity), scheduler
            assert command == fakes.calls[-1]
    assert 4 == len(fakes.calls)


def test_what_may_be_a_cancellation_requeues_nothing(fakes, monkeypatch):
    """SIGTERM comes of qdel and bkill too; the user is told what to type, and no exit code says otherwise."""
    monkeypatch.setenv("LSB_EXIT_REQUEUE", "75")
    for scheduler in ("pbs", "lsf", "sge", "flux"):
        how, line = onward(scheduler, "SIGTERM")
        assert "unclear" == how
        assert line.startswith("job 120: why SIGTERM came is unclear, so it is not requeued. To go on, type: ")
        assert other.exit_code(here(scheduler), "SIGTERM") is None
    assert [] == fakes.calls


CODES = [
    ("sge", "deadline", {}, 99),
    ("sge", "SIGUSR2", {}, None),  # -notify: a qdel, perhaps
    ("lsf", "SIGUSR2", {"LSB_EXIT_REQUEUE": "30 75"}, 75),
    ("lsf", "SIGUSR2", {"LSB_EXIT_REQUEUE": "30 175"}, None),
    ("kubernetes", "SIGTERM", {}, 75),
    ("pbs", "deadline", {}, None),
    ("flux", "deadline", {}, None),
    ("slurm", "deadline", {}, None),
]


@pytest.mark.parametrize(("scheduler", "what", "environment", "expected"), CODES)
def test_an_exit_code_that_starts_the_job_again(fakes, monkeypatch, scheduler, what, environment, expected):
    """Where the scheduler goes by it, and the queue is set up so."""
    monkeypatch.delenv("LSB_EXIT_REQUEUE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert expected == other.exit_code(here(scheduler), what)
    if expected is not None:
        line = f"job 120: exit code {expected} makes {scheduler} start it again"
        assert ("by its rule", line) == onward(scheduler, what)
    assert [] == fakes.calls


def test_what_does_not_work_is_told_with_what_to_type(fakes):
    """No such command, no such means; qrerun wants operator rights at many sites."""
    for scheduler in ("pbs", "lsf"):
        assert "failed" == onward(scheduler, "deadline")[0]
    todo = "flux batch --dependency=afterany:120, with its script"
    assert ("failed", f"job 120: flux starts no job again. To go on, type: {todo}") == onward("flux", "deadline")
    fakes.say("qrerun", err="qrerun: Unauthorized Request 120.head\n", code=159)
    how, line = onward("pbs", "deadline", "120.head")
    said = "qrerun 120.head: qrerun: Unauthorized Request 120.head"
    todo = "To go on, type: qrerun 120.head, or qsub, with its script"
    assert ("failed", f"job 120.head could not be requeued: {said}. {todo}") == (how, line)


def test_hold_and_the_limit_of_requeues_hold_here_too(fakes, tmp_path):
    """They are ours, whoever the scheduler is; and it is journalled before it is done."""
    fakes.say("qrerun 120")
    events = []

    def carried(requeues=0):
        def record(event, **facts):
            events.append((event, facts["heard"], [*fakes.calls]))

        return Requeue(here("pbs"), StopNotice("deadline", 0.0), record, requeues, [tmp_path], 5).continue_job().how

    assert "requeued" == carried()
    assert [("requeued", "deadline", [])] == events
    assert "limit" == carried(5)
    (tmp_path / "hold").touch()
    assert "held" == carried()
    assert ["qrerun 120"] == fakes.calls


def test_a_superseded_attempt_requeues_nothing(fakes):
    """The requeue would end its successor, which has the same id."""
    fakes.say("qrerun 120")

    def record(*_, **__):
        raise Superseded("attempt 1 was superseded")

    assert "superseded" == Requeue(here("pbs"), StopNotice("deadline", 0.0), record).continue_job().how
    assert [] == fakes.calls
