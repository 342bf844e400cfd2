"""`holdfast status`: the state of each run from journals and from Slurm's queue, and the line to type next."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from holdfast import Every, Run, journal, owner
from stores import invoke

SCRIPT = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH --output=.holdfast/train-1/slurm-%A_%a.out
#SBATCH --array=1-4
export HOLDFAST_TASK=$SLURM_ARRAY_TASK_ID
"""
PLAIN = "#!/bin/bash\n#SBATCH --job-name=mine\n#SBATCH --output=logs/%x-%j.out\nexec holdfast run --run x -- a\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, and a squeue that says what is in the file `queue`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/queue\n")
    (programs / "squeue").chmod(0o755)
    (tmp_path / "queue").touch()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for name in ("SLURM_JOB_ID", "HOLDFAST_SUPERVISOR"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def asked(*words):
    result = invoke("status", *words)
    assert 0 == result.exit_code, result.output
    return result.stdout


def told(*words):
    return {each["name"]: each for each in json.loads(asked(*words, "--json"))["runs"]}


def job(number, restart=0, task=None):
    return {"id": str(number), "array_task": task, "restart_count": restart}


def supervised(directory, *events, script=None, number=17, task=None):
    """A supervisor's journal there, of a process that is long gone; and a submission's script."""
    directory.mkdir(parents=True, exist_ok=True)
    if script is not None:
        (directory / "job.sh").write_text(script)
        events = ({"event": "submission", "job": str(number)}, *events)
    gone = {**owner.describe_this_process(), "pid": 2**22, "pid_started": "1", "job": job(number, task=task)}
    begin = {"event": "begin", "supervisor": "a", "owner": gone, "command": ["python", "a b.py"]}
    lines = [begin if each == "begin" else {"supervisor": "a", **each} for each in events]
    (directory / "supervisor.jsonl").write_bytes(journal.encode_events(lines))


def test_a_node_that_the_job_is_kept_from_is_told(place):
    """With how long that lasts; in --json with the time of its end. What has expired is not told."""
    end_s = time.time() + 7200
    excluded = {"event": "excluded", "job": "17", "nodes": {"n3": end_s, "n4": 1.0}}
    supervised(place / "x", "begin", {"event": "start", "pid": 1}, {"event": "stop", "reason": "bad node"}, excluded)
    assert {"n3": end_s} == told("x")["x"]["excluded"]
    assert re.search(r"^not on n3 for (2 h|120 min)$", asked("x"), re.MULTILINE)


def test_a_sweep_is_one_table_of_its_tasks(place):
    """One is done, one has failed, one waits, and one never began: each with what to type."""
    sweep = place / ".holdfast/train-1"
    supervised(sweep, script=SCRIPT)
    start = [{"event": "start", "pid": 1}, {"event": "exit", "verdict": "done", "code": 0}]
    supervised(sweep / "task-1", "begin", *start, {"event": "end"}, task="1")
    failed = {"event": "exit", "verdict": "failed", "code": 3}
    supervised(sweep / "task-2", "begin", start[0], failed, {"event": "failed", "error": "exit 3"}, task="2")
    queue = "17|3|PENDING|Priority||N/A|/w|job.sh\n99|4|RUNNING|None|n9|N/A|/w|job.sh\n"
    (place.parent / "queue").write_text(queue)
    found = told(sweep)
    states = {name.rpartition("-")[2]: (each["state"], each["why"], each["job"]) for name, each in found.items()}
    assert {
        "1": ("done", "", "17_1"),
        "2": ("failed", "exit 3", "17_2"),
        "3": ("queued", "Priority", "17_3"),
        "4": ("not started", "", None),
    } == states
    assert "holdfast submit --continue" in found["train-1/task-2"]["next"]
    assert found["train-1/task-2"]["output"] == ".holdfast/train-1/slurm-17_2.out"
    text = asked()
    assert "4 runs: 1 done, 1 failed, 1 queued, 1 not started" in text
    wanted = found["train-1/task-2"] | {"name": "task-2"}
    assert wanted == told(sweep / "task-2")["task-2"], "one task by itself"
    assert ("queued", "17_3") == tuple(told(sweep / "task-3")["task-3"][name] for name in ("state", "job"))
    os.chdir(sweep / "task-2")
    assert f"holdfast submit --continue {sweep}" == told()["task-2"]["next"]
    os.chdir(place)
    assert "train-1/task-3" in text


def test_a_running_job_is_told_with_its_end_and_its_output(place):
    """Its nodes, how long it may still run, where its output is."""
    end_s = int(time.time()) + 7380
    supervised(place / "x", "begin", {"event": "start", "pid": 1}, script=PLAIN, number=20)
    (place.parent / "queue").write_text(f"20|N/A|RUNNING|None|n1|{end_s}|/w|job.sh\n")
    found = told("x")["x"]
    assert ("running", "20", "n1", end_s) == tuple(found[name] for name in ("state", "job", "nodes", "deadline"))
    assert "tail -F logs/mine-20.out" == found["next"]
    text = asked("x")
    assert "job    20 on n1, ends in 2 h\n" in text
    (place.parent / "queue").write_text(f"20|N/A|RUNNING|None|n1|{int(time.time()) - 3}|/w|job.sh\n")
    assert "job    20 on n1, ends in 0 s\n" in asked("x"), "it is being preempted"
    (place.parent / "queue").write_text("")
    found = told("x")["x"]
    assert ("killed", "holdfast submit --continue") == (found["state"], found["next"][:26])
    assert ["killed"] == [start["cause"] for start in found["starts"]], "a job that has gone is not at work"


def test_a_chain_is_at_work_while_its_next_tasks_wait(place):
    """Slurm lists those that wait first."""
    supervised(place / "x", "begin", {"event": "start", "pid": 1}, script=PLAIN, number=23, task="1")
    queue = "23|2|PENDING|JobArrayTaskLimit||N/A|/w|job.sh\n23|1|RUNNING|None|n3|N/A|/w|job.sh\n"
    (place.parent / "queue").write_text(queue)
    found = told("x")["x"]
    assert ("running", "", "23_1") == tuple(found[name] for name in ("state", "why", "job"))


def test_a_hold_is_told_while_its_job_still_works(place):
    """And what waits for the release says nothing twice."""
    supervised(place / "x", "begin", {"event": "start", "pid": 1}, script=PLAIN, number=20)
    (place / "x/hold").touch()
    (place.parent / "queue").write_text("20|N/A|RUNNING|None|n1|N/A|/w|job.sh\n")
    assert ("running", "on hold: not started again") == (told("x")["x"]["state"], told("x")["x"]["why"])
    (place.parent / "queue").write_text("20|N/A|PENDING|Priority||N/A|/w|job.sh\n")
    assert ("queued", "Priority, on hold: not started again") == (told("x")["x"]["state"], told("x")["x"]["why"])
    (place.parent / "queue").write_text("")
    supervised(place / "x", "begin", {"event": "stop", "reason": "held"}, script=PLAIN, number=20)
    assert ("held", "") == (told("x")["x"]["state"], told("x")["x"]["why"])


def test_a_job_that_ended_in_its_set_up_leads_to_its_output(place):
    """Nothing but the output knows why; a job that was cancelled in the queue has none."""
    supervised(place / "x", script=PLAIN, number=20)
    assert ("not started", "holdfast submit --continue x") == (told("x")["x"]["state"], told("x")["x"]["next"])
    (place / "logs").mkdir()
    (place / "logs/mine-20.out").write_text("module: command not found\n")
    found = told("x")["x"]
    assert ("not started", "logs/mine-20.out", "tail logs/mine-20.out") == tuple(
        found[name] for name in ("state", "output", "next")
    )


def test_a_run_that_requeued_its_own_job_waits_and_is_not_to_be_started_by_hand(place):
    """Two would write side by side. While the job works, perhaps at something else, the run's own journal knows."""
    with pytest.raises(SystemExit), Run("runs/x", state={"w": [0]}) as run:
        for _ in run.steps(5):
            os.kill(os.getpid(), signal.SIGTERM)
    file = next((place / "runs/x/attempts").rglob("*.jsonl"))
    events = journal.read(file)
    for event in events:
        if "owner" in event:
            event["owner"]["job"] = job(46)
    file.write_bytes(journal.encode_events(events))
    by_hand = ("stopped", "46", "start it again as you did")
    for queue, wanted in {
        "": by_hand,
        "46|N/A|RUNNING|None|n1|N/A|/w|job.sh\n": by_hand,
        "46|N/A|PENDING|BeginTime||N/A|/w|job.sh\n": ("queued", "46", ""),
    }.items():
        (place.parent / "queue").write_text(queue)
        assert wanted == tuple(told("runs/x")["x"][name] for name in ("state", "job", "next"))


def test_what_is_to_be_typed_fits_the_state(place):
    """A stop, a hold, a supervisor without a submission, and one with a secret in its command."""
    stop = {"event": "stop", "reason": "SIGTERM"}
    supervised(place / "s", "begin", stop, script=PLAIN)
    assert "holdfast submit --continue s" == told("s")["s"]["next"]
    (place / "s/hold").touch()
    assert ("held", "holdfast release s && holdfast submit --continue s") == (
        told("s")["s"]["state"],
        told("s")["s"]["next"],
    )
    supervised(place / "by hand", "begin", stop)
    assert "holdfast run --run 'by hand' -- python 'a b.py'" == told("by hand")["by hand"]["next"]


def test_what_is_to_be_typed_has_the_options_that_were_typed(place):
    """As words for the shell; not --run, which it has anyway, nor what was left at its default."""
    (place / "touched").touch()
    typed = ["--retries", "0", "--alive", "touched", "--no-requeue", "--on-hang", "restart"]
    ran = invoke("run", "--json", *typed, "--run", "x", "--", "sh", "-c", "exit 3")
    assert 8 == ran.exit_code, ran.output
    (line,) = [each["next"] for each in told("x").values()]
    before, _, command = line.partition(" -- ")
    assert "sh -c 'exit 3'" == command
    assert ["holdfast", "run", "--run", "x"] == before.split()[:4]
    assert sorted(typed) == sorted(before.split()[4:])


def test_what_ended_the_supervision_is_told_of_the_last_start_alone(place):
    """A command without a run: the first start did not hang twice."""
    hung = {"event": "exit", "verdict": "failed", "code": -15, "hung": "its output"}
    twice = [{**event, "time": float(at)} for at in (1, 2) for event in ({"event": "start", "pid": at}, hung)]
    supervised(place / "s", "begin", *twice, {"event": "failed", "error": "it hung twice"})
    assert ["", "it hung twice"] == [each["why"] for each in told("s")["s"]["starts"]]


def test_a_stop_says_why_it_came_and_not_only_by_which_signal(place):
    """A cancellation, a preemption and a time limit all come as SIGTERM."""
    exited = [{"event": "start", "pid": 1}, {"event": "exit", "told": "SIGTERM", "code": 75}]
    after = {"event": "not_requeued", "cause": "cancelled", "job": "17"}
    supervised(place / "s", "begin", *exited, after, {"event": "stop", "reason": "SIGTERM"}, script=PLAIN)
    assert ("stopped", "cancelled") == (told("s")["s"]["state"], told("s")["s"]["why"])


def test_a_run_without_a_supervisor_is_told_from_its_own_journal(place):
    """Steps, saves, and each attempt; a run that its supervisor has is listed once."""
    state = {"w": [0]}
    with Run("runs/x", state=state, every=Every(steps=2)) as run:
        for _ in run.steps(5):
            run.log(loss=1.0)
            if run.step == 3:
                break
    found = told("runs/x")["x"]
    assert ("done", 4, 4) == tuple(found[name] for name in ("state", "step", "saved_step"))
    assert "holdfast show runs/x" == found["next"]
    supervised(place / ".holdfast/x-1", "begin", {"event": "end"})
    (place / ".holdfast/x-1/run-here.json").write_text(json.dumps({"run": str(place / "runs/x")}))
    assert [("x-1", "done", 4)] == [(name, each["state"], each["step"]) for name, each in told().items()]
    for words in (["ls"], ["show"], ["verify"], ["show", "--metrics"]):
        shown = [invoke(*words, path).stdout for path in (".holdfast/x-1", "runs/x")]
        assert shown[0] == shown[1].replace("runs/x", str(place / "runs/x")) != "", "it stands for its run"


def test_a_killed_run_is_told_and_a_silent_one_with_its_last_sign(place):
    """Of what nobody can see from here it is said when it was last heard of."""
    with Run("runs/x", state={"w": [0]}, every=Every(steps=2)) as run:
        for _ in run.steps(5):
            run.log(loss=1.0)
    root = place / "runs/x"
    file = root / "attempts/1/attempt-1.jsonl"
    killed, ending, _ = file.read_text().rpartition('{"time"')
    assert ending != "", "the closing line"
    with subprocess.Popen(["true"]) as over:
        pass
    file.write_text(re.sub(r'"pid":\d+', f'"pid":{over.pid}', killed))
    assert ("killed", None) == tuple(told("runs/x")["x"][name] for name in ("state", "heard"))
    journal.logs(root)[0].path.write_text(re.sub(r'"(boot|host)":"[^"]*"', r'"\1":"elsewhere"', killed))
    found = told("runs/x")["x"]
    assert ("running", journal.logs(root)[0].last["time"]) == (found["state"], found["heard"])
    assert re.search(r"^heard  .* ago$", invoke("status", "runs/x").stdout, re.MULTILINE)


def test_ls_of_a_job_that_has_no_checkpoint_yet_names_status(place):
    """And of a folder of runs; not where no run is."""
    supervised(place / ".holdfast/x-1", script=PLAIN)
    for path in (".holdfast/x-1", ".holdfast"):
        result = invoke("ls", path)
        assert (3, 1) == (result.exit_code, len(result.stderr.splitlines()))
        assert f"holdfast status {path}" in result.stderr
    assert "status" not in invoke("ls", str(place.parent / "bin")).stderr


def test_a_slurm_that_does_not_answer_is_said(place):
    """And what the journals know is told all the same."""
    supervised(place / "s", "begin", {"event": "end"}, script=PLAIN)
    (place.parent / "bin/squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact' >&2; exit 1\n")
    result = invoke("status", "s")
    assert (0, 1) == (result.exit_code, result.stderr.count("what waits in the queue is not known"))
    assert result.stdout.startswith("s: done")
    supervised(place / "t", "begin", {"event": "start", "pid": 1}, {"event": "end"})
    assert 1 == invoke("status", "t").stderr.count("is not known")  # it was in a job
    with Run("runs/x", state={"w": [0]}) as run:
        for _ in run.steps(1):
            pass
    assert "squeue" not in invoke("status", "runs").stderr, "no run there has a job"


def test_where_no_run_is_there_is_one_line_and_exit_3(place):
    """Nothing, and a folder without runs."""
    for path in ("nothing", "."):
        result = invoke("status", path)
        assert (3, 1) == (result.exit_code, len(result.stderr.splitlines())), result.output
