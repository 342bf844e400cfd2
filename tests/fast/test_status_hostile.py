"""Status and hold on what is not ours, on what cannot be read, and on a sweep as a whole."""

from pathlib import Path

from test_status import PLAIN, SCRIPT, job, place, supervised, told

from holdfast import Run, owner
from holdfast.apps.command import AnyCommand
from holdfast.cluster import job_leader
from holdfast.supervise.supervise import SupervisorOptions, supervise
from stores import invoke

__all__ = ["place"]  # a fixture
OWN = "#!/bin/bash\n#SBATCH --time=60\nexec holdfast run --run state/one -- python train.py\n"


def test_a_job_script_of_the_user_is_no_submission(place):
    """It hides no run beside it, and is not named as what to submit; nor does it follow a job whose requeue fails."""
    (place / "job.sh").write_text(OWN)
    with Run("runs/x", state={"w": [0]}) as run:
        for _ in run.steps(2):
            pass
    assert ["x"] == list(told())
    supervised(place / "state", "begin", {"event": "stop", "reason": "SIGTERM"})
    assert {"x", "state"} == {*told()}
    assert "--continue" not in told("state")["state"]["next"]
    assert job_leader.script_of(place / "state") is None


def test_what_cannot_be_read_hides_nothing_else(place, monkeypatch):
    """A stranger's folder, a script that somebody has changed beyond reading, a directory that is being removed."""
    supervised(place / "s", "begin", {"event": "end"}, script=PLAIN)
    supervised(place / "t", script=SCRIPT.replace("1-4", "$TASKS"))
    (place / "closed").mkdir(mode=0)
    (place / "dangling").symlink_to("nowhere")
    (place / "torn").mkdir()
    (place / "torn/supervisor.jsonl").write_bytes(b'{"event": "begin", "ti')
    real = Path.iterdir

    def guarded(path):  # root may read everything
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "iterdir", guarded)
    assert {"s": "done", "t": "not started", "torn": "not started"} == {
        name: each["state"] for name, each in told().items()
    }


def test_a_job_that_slurm_does_not_have_any_more_is_not_running(place):
    """Its node was lost, or all of it was killed: the journal is open for ever, and its host is not this one."""
    far = {**owner.describe_this_process(), "boot": "another", "machine": "another", "host": "n7", "job": job(17)}
    begin = {"event": "begin", "supervisor": "b", "owner": far, "command": ["python"]}
    supervised(place / "x", begin, {"event": "start", "pid": 1}, script=PLAIN)
    assert "killed" == told("x")["x"]["state"]
    assert "holdfast submit --continue x" == told("x")["x"]["next"]
    (place.parent / "bin/squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact' >&2; exit 1\n")
    result = invoke("status", "x")
    assert "x: running" in result.stdout


def test_a_job_whose_submission_nobody_noted_is_known_by_its_start(place):
    """The sbatch did not answer, or somebody has submitted the script by hand."""
    far = {**owner.describe_this_process(), "boot": "another", "machine": "another", "host": "n7", "job": job(18)}
    begin = {"event": "begin", "supervisor": "b", "owner": far, "command": ["python"]}
    supervised(place / "x", begin, {"event": "start", "pid": 1}, script=PLAIN)
    (place.parent / "queue").write_text("18|N/A|RUNNING|None|n7|N/A|/elsewhere|x/job.sh\n")
    assert ("running", "18") == (told("x")["x"]["state"], told("x")["x"]["job"])
    supervised(place / "y", begin, {"event": "end"})
    assert "done" == told("y")["y"]["state"], "the user's own script goes on with something else"
    (place.parent / "queue").write_text("")
    assert "killed" == told("x")["x"]["state"]


def test_a_hold_of_a_sweep_holds_its_tasks(place, monkeypatch):
    """Those that begin later, too: it says that it does."""
    sweep = place / ".holdfast/train-1"
    supervised(sweep, script=SCRIPT)
    (sweep / "task-2").mkdir()
    assert 3 == invoke("hold", str(sweep / "task-5")).exit_code, "there is none"
    for word, state in (("hold", "held"), ("release", "not started")):  # one task by itself, before it has begun
        assert 0 == invoke(word, str(sweep / "task-4")).exit_code
        assert state == told(sweep)["train-1/task-4"]["state"]
    assert 0 == invoke("hold", str(sweep)).exit_code
    (place / "seen").write_text("")
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    outcome = supervise(
        ["touch", "began"], lambda _: AnyCommand(), SupervisorOptions(directory=sweep / "task-2", name="x")
    )
    assert ("held", 75) == (outcome.reason, outcome.exit_code)
    assert not (place / "began").exists()
    assert "held" == told(sweep)["train-1/task-2"]["state"]
