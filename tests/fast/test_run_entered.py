"""A run and the batch jobs that enter it: restarts of one submission, and another one with other arguments."""

import sys

import pytest

from holdfast import Run
from holdfast.cluster import job_leader
from holdfast.errors import UsageError
from holdfast.supervise.judge import CommandAttempt, decide_next_step
from holdfast.supervise.witness import RunJournalReader


@pytest.fixture
def enter(tmp_path, monkeypatch):
    """Enters the run as a job with these words does; returns the steps that it went."""
    monkeypatch.chdir(tmp_path)

    def call(*words, job="17", supervisor=None, task=None, script="/some/where/train.py", raw=None, **options):
        for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "HOLDFAST_SUPERVISOR"):
            monkeypatch.delenv(name, raising=False)
        if job is not None:
            monkeypatch.setenv("SLURM_JOB_ID", job)
        if task is not None:
            monkeypatch.setenv("SLURM_JOB_ID", raw or job)
            monkeypatch.setenv("SLURM_ARRAY_JOB_ID", job)
            monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        if supervisor is not None:
            (tmp_path / supervisor).mkdir(exist_ok=True)
            (tmp_path / supervisor / "job.sh").touch()
            monkeypatch.setenv("HOLDFAST_SUPERVISOR", str(tmp_path / supervisor))
            monkeypatch.setenv("HOLDFAST_SUPERVISOR_JOB", f"{job if task is None else f'{job}_{task}'}:0")
        monkeypatch.setattr(sys, "argv", [script, *words] if script else [])
        with Run("runs/x", state={"w": [0]}, **options) as run:
            return sum(1 for _ in run.steps(3))

    return call


def test_another_submission_with_other_arguments_is_refused_before_anything_is_touched(enter, tmp_path):
    """Both commands are named, and the line to write; the first one's run stays as it was."""
    assert 3 == enter("--lr", "1", supervisor="train-1")
    before = sorted(tmp_path.glob("runs/**/*"))
    with pytest.raises(UsageError) as refused:
        enter("--lr", "2", job="18", supervisor="train-2")
    for part in (
        "runs/x: train-1 began this run with `train.py --lr 1`; train-2 would go on",
        "as `train.py --lr 2`",
        'Run(f"runs/x-{lr}")',
        'accept={"arguments"}',
    ):
        assert part in str(refused.value)
    assert before == sorted(tmp_path.glob("runs/**/*"))


def test_the_supervisor_does_not_try_again(enter, tmp_path):
    """Nor is the job requeued: the refusal is read once."""
    enter("--lr", "1", supervisor="train-1")
    with pytest.raises(UsageError):
        enter("--lr", "2", job="18", supervisor="train-2")
    said = RunJournalReader(tmp_path / "train-2").read_outcome(0.0)
    assert "train-1 began this run" in said.refused
    attempt = CommandAttempt("failed", 1, 1.0, refused=said.refused)
    assert ("fail", "its run belongs to another submission") == decide_next_step([attempt], retries=5)[:2]
    assert "" == job_leader.take_refusal(tmp_path / "train-2")


def test_what_goes_on_is_not_refused(enter):
    """A restart, a successor, a resubmission with the same words, what names the job itself, and what is meant."""
    enter("--lr", "1", supervisor="train-1")
    enter("--lr", "1", job="18", supervisor="train-1")  # a successor of the same submission
    enter("--lr", "3", job="18", supervisor="train-1")  # whose script was changed on purpose
    enter("--lr", "3", job="19")  # sbatch by hand
    enter("--lr", "3", job="20", supervisor="train-2")
    enter("--lr", "4", job="21", accept={"arguments"})
    enter("--lr", "5", job=None)  # by hand: somebody looks on
    with pytest.raises(UsageError, match=r"job 22 would go on with its weights as `train.py --lr 5`"):
        enter("--lr", "5", job="22")
    enter("--lr", "4", "--log", "logs/4711/a", job="4711", accept="arguments")
    enter("--lr", "4", "--log", "logs/4712/a", job="4712")


def test_tasks_of_an_array_are_jobs_of_their_own(enter):
    """With the same words, as a chain has them, they go on; with others they are refused at once."""
    enter("--seed", "1", task="1")
    enter("--seed", "1", task="2")
    with pytest.raises(UsageError, match=r'Run\(f"runs/x-\{seed\}"\)'):
        enter("--seed", "2", task="3")


def test_a_task_of_a_sweep_is_told_from_another_by_its_number(enter, monkeypatch):
    """Where no word of the command differs: the second task would be done at once, with the first one's weights."""
    monkeypatch.setenv("HOLDFAST_TASK", "1")
    enter("--fast", task="1", supervisor="task-1")
    enter("--fast", task="1", job="18", supervisor="task-1")
    monkeypatch.setenv("HOLDFAST_TASK", "2")
    with pytest.raises(UsageError, match="HOLDFAST_TASK=2") as refused:
        enter("--fast", task="2", supervisor="task-2")
    assert """Run(f"runs/x-{os.environ['HOLDFAST_TASK']}")""" in str(refused.value)


def test_words_that_no_user_wrote_are_no_other_arguments(enter, monkeypatch):
    """Those of a notebook's kernel, the ids of the tasks of a chain, and a program without any words."""
    monkeypatch.setenv("HOLDFAST_TASK", "")
    enter("--log", "logs/17/17_1", task="1")
    enter("--log", "logs/17/17_2", task="2")
    monkeypatch.setenv("SLURM_JOBID", "931")
    enter("--log", "logs/931", job="931", accept={"arguments"})
    enter("--log", "logs/931", job="17", task="3", raw="931")
    enter("-f", "/run/kernel-1.json", job="40", script="/x/ipykernel_launcher.py", accept={"arguments"})
    enter("-f", "/run/kernel-2.json", job="41", script="/x/ipykernel_launcher.py")
    enter(job="42", script=None, accept={"arguments"})
    enter(job="43", script=None)
