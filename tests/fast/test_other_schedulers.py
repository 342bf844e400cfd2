"""Other schedulers than Slurm: what their environment says, and what makes each start a job again. Fake executables."""

import pytest

from fakes import Fakes
from holdfast import job as jobs
from holdfast.cluster import other
from holdfast.cluster.cause import Heard
from holdfast.cluster.requeue import Journal, continue_job
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


@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_the_job_is_read_from_the_environment(case):
    """Each scheduler by its own names; a common name alone proves nothing."""
    environment, expected = ENVIRONMENTS[case]
    assert expected == job(environment)


def test_every_scheduler_but_slurm_has_a_rule():
    """A name in one table is a name in the other."""
    assert {"slurm", *other.RULES} == {*jobs.SCHEDULERS}


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    return Fakes(tmp_path, monkeypatch)


def here(scheduler, identity="120"):
    return Job(scheduler, identity, 0)


BY_COMMAND = {"pbs": ("qrerun 120.head", "120.head"), "lsf": ("brequeue -r 120[3]", "120[3]")}


@pytest.mark.parametrize("scheduler", BY_COMMAND)
@pytest.mark.parametrize("what", ["deadline", "SIGUSR1"])
def test_a_limit_requeues_by_command(fakes, scheduler, what):
    """With the id as its command takes it."""
    command, identity = BY_COMMAND[scheduler]
    fakes.say(command)
    onward = other.carry_on(here(scheduler, identity), what, {})
    assert ("requeued", f"job {identity}: requeued") == onward
    assert [command] == fakes.calls


@pytest.mark.parametrize("scheduler", ["pbs", "lsf", "sge", "flux"])
def test_what_may_be_a_cancellation_requeues_nothing(fakes, scheduler):
    """SIGTERM comes of qdel and bkill too; the user is told what to type, and no exit code says otherwise."""
    onward = other.carry_on(here(scheduler), "SIGTERM", {"LSB_EXIT_REQUEUE": "75"})
    assert "unclear" == onward.how
    assert onward.line.startswith("job 120: why SIGTERM came is unclear, so it is not requeued. To go on, type: ")
    assert other.exit_code(here(scheduler), "SIGTERM", {"LSB_EXIT_REQUEUE": "75"}) is None
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
def test_an_exit_code_that_starts_the_job_again(fakes, scheduler, what, environment, expected):
    """Where the scheduler goes by it, and the queue is set up so."""
    assert expected == other.exit_code(here(scheduler), what, environment)
    if expected is not None:
        line = f"job 120: exit code {expected} makes {scheduler} start it again"
        assert ("by its rule", line) == other.carry_on(here(scheduler), what, environment)
    assert [] == fakes.calls


def test_a_refusal_is_told_with_what_to_type(fakes):
    """qrerun wants operator rights at many sites."""
    fakes.say("qrerun", err="qrerun: Unauthorized Request 120.head\n", code=159)
    onward = other.carry_on(here("pbs", "120.head"), "deadline", {})
    said = "qrerun: qrerun: Unauthorized Request 120.head"
    todo = "To go on, type: qrerun 120.head, or qsub, with its script"
    assert ("failed", f"job 120.head could not be requeued: {said}. {todo}") == onward


def test_nothing_raises_out_of_it(fakes):
    """No such command, no such means."""
    assert "failed" == other.carry_on(here("pbs"), "deadline", {}).how
    assert "failed" == other.carry_on(here("lsf"), "deadline", {}).how
    onward = other.carry_on(here("flux"), "deadline", {})
    todo = "flux batch --dependency=afterany:120, with its script"
    assert ("failed", f"job 120: flux starts no job again. To go on, type: {todo}") == onward


def test_hold_and_the_limit_of_requeues_hold_here_too(fakes, tmp_path):
    """They are ours, whoever the scheduler is; and it is journalled before it is done."""
    fakes.say("qrerun 120")
    events = []

    def carried(requeues=0):
        journal = Journal(lambda event, **facts: events.append((event, facts["heard"], [*fakes.calls])), requeues)
        return continue_job(here("pbs"), Heard("deadline", 0.0), journal, places=[tmp_path], limit=5).how

    assert "requeued" == carried()
    assert [("requeued", "deadline", [])] == events
    assert "limit" == carried(5)
    (tmp_path / "hold").touch()
    assert "held" == carried()
    assert ["qrerun 120"] == fakes.calls
