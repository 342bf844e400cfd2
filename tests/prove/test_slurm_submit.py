"""`holdfast submit` on a real Slurm: what it submits goes on until it is done, and then leaves the queue.

Each interruption is asserted from Slurm's own record. The stories begin together and mostly wait.
"""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from needed import missing
from real_slurm import concurrently
from slurm_stories import (
    HOLDFAST,
    STEPS,
    call,
    end_in,
    final,
    gone,
    script,
    submit,
    text,
    until_resumed,
)


@concurrently
def test_the_script_can_be_submitted_by_hand_from_another_folder(slurm, place):
    """As the line says that a stopped job leaves: its output and its run are where they were."""
    job, _ = submit(slurm, place, "--hold", "--", "python", "train.py", 20)
    slurm.ask("scancel", job)
    path = f"--export=ALL,PATH={HOLDFAST.parent}:{os.environ['PATH']}"
    again = slurm.ask("sbatch", "--parsable", path, str(place / ".holdfast/train-1/job.sh"), cwd=Path("/"))
    slurm.ask("scontrol", "release", again)
    assert "COMPLETED" == slurm.wait(again, "COMPLETED", "FAILED")["JobState"]
    assert final(20) in text(place / f".holdfast/train-1/slurm-{again}.out")


@concurrently
def test_a_time_limit_is_survived_twice(slurm, place):
    """Requeued under its own id; the output of all three starts is in one file."""
    job, output = submit(slurm, place, "--lead", "8", "--", "python", "train.py")
    for restarts in ("1", "2"):
        until_resumed(slurm, output, int(restarts))
        end_in(slurm, job, 5)
        slurm.until(lambda restarts=restarts: slurm.show(job)["Restarts"] == restarts)
    (place / "fast").touch()
    slurm.wait(job, "COMPLETED", limit_s=300)
    assert final() in text(output)
    assert [1, 1] == [text(output).count(f"step {step}\n") for step in (20, STEPS)]
    endings = [how for how in slurm.endings(job) if how != "TIMEOUT"]  # or we had stopped it just before
    assert ["PENDING", "PENDING", "COMPLETED"] == endings


@concurrently
def test_a_chain_of_ten_goes_on_from_task_to_task_and_ends_with_the_work(slurm, place):
    """The first task runs out of time, the second finishes, and the eight that are left never begin."""
    job, output = submit(slurm, place, "--lead", "8", "--chain", 10, "--", "python", "train.py")
    until_resumed(slurm, output, 1)
    end_in(slurm, f"{job}_1", 5)
    assert "0:0" == slurm.wait(f"{job}_1", "COMPLETED", "FAILED", "TIMEOUT")["ExitCode"]
    (place / "fast").touch()
    slurm.wait(f"{job}_2", "COMPLETED", limit_s=300)
    gone(slurm, job)
    assert final() in text(output)
    assert text(output).endswith(
        "holdfast: task 2 of the chain has finished the work; the tasks that wait are cancelled on purpose\n"
    )
    assert re.search(r"done at step 4,000 after 2 starts \(1 .*\)\n", text(output)), text(output)[-300:]
    assert ["CANCELLED"] == slurm.endings(job)  # the array's own id is that of the tasks which never began
    assert 2 == text(output).count("(attempt ")
    assert 1 == text(output).count("starts fresh")


SLOW = """
import os, signal, sys, time
def save(number, frame):
    signal.signal(number, signal.SIG_IGN)  # told by Slurm, and by the supervisor
    time.sleep(20 if not os.path.exists("saved") else 600)
    open("saved", "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("begins", flush=True)
while not os.path.exists("fast"):
    time.sleep(0.1)
"""


@concurrently
def test_a_task_that_saves_for_long_costs_the_chain_no_other(slurm, place):
    """Slurm starts the next task when it tells one to end: the next one waits, also for one that is killed."""
    (place / "slow.py").write_text(SLOW)
    job, output = submit(slurm, place, "--chain", 5, "--", "python", "slow.py")
    for task in (1, 2):
        slurm.until(lambda task=task: text(output).count("begins") == task)
        slurm.ask("scancel", f"{job}_{task}")
        waits = f"task {task} of this array is still ending"
        slurm.until(lambda waits=waits, task=task: waits in text(output) or text(output).count("begins") > task)
    slurm.until(lambda: text(output).count("begins") == 3)
    (place / "fast").touch()
    slurm.wait(f"{job}_3", "COMPLETED")
    gone(slurm, job)
    assert "is still ending" in text(output)  # on a busy machine one task may be over before the next one looks
    assert "another `holdfast run`" not in text(output)


@concurrently
def test_a_notice_while_the_data_set_is_staged_does_not_end_the_job(slurm, place):
    """The shell ignores it, and holdfast, once it is there, sees that the time is short: the job is carried on."""
    source = place / "data"
    source.mkdir()
    (source / "a").write_text("1")
    words = ["--setup", f"export SLURM_TMPDIR={place}/node", "--stage", "data", "--lead", "100"]
    words += ["--setup", "echo staging; until [ -e staged ]; do sleep 0.2; done"]
    job, output = submit(slurm, place, *words, "--", "python", "train.py")
    slurm.until(lambda: "staging" in text(output))
    end_in(slurm, job, 90)
    slurm.until(lambda: f"job_signal: {signal.SIGUSR1} of running JobId={job} successful" in slurm.log())
    (place / "staged").touch()
    slurm.until(lambda: slurm.show(job)["Restarts"] == "1")
    (place / "fast").touch()
    slurm.wait(job, "COMPLETED", limit_s=300)
    assert final() in text(output)
    assert "1" == (place / "node/data/a").read_text()


@concurrently
def test_a_cancel_while_the_data_set_is_staged_ends_the_job(slurm, place):
    """For good: what the user cancels stays cancelled."""
    words = ["--setup", "echo staging; until [ -e staged ]; do sleep 0.2; done"]
    job, output = submit(slurm, place, *words, "--", "python", "train.py", 20)
    slurm.until(lambda: "staging" in text(output))
    slurm.ask("scancel", job)
    gone(slurm, job)
    assert ["CANCELLED"] == slurm.endings(job)
    assert "step" not in text(output).replace("slurmstepd", "")


@concurrently
def test_a_step_of_srun_hears_of_a_notice_and_of_the_end(slurm, place):
    """Srun hands SIGUSR1 on; at SIGTERM it would kill its tasks, so they are told past it."""
    job, output = submit(slurm, place, "--", "srun", "python", "train.py")
    until_resumed(slurm, output, 1)
    slurm.ask("scancel", "--batch", "--signal=USR1", job)
    assert "75:0" == slurm.wait(job, "FAILED")["ExitCode"]
    assert 1 == text(output).count("stopped by SIGUSR1 at step")
    job, output = submit(slurm, place, "--", "srun", "python", "train.py")
    until_resumed(slurm, output, 1)
    slurm.ask("scancel", "--batch", "--signal=TERM", job)
    assert "75:0" == slurm.wait(job, "FAILED")["ExitCode"]
    assert 1 == text(output).count("stopped by SIGTERM at step")
    (place / "fast").touch()
    job, output = submit(slurm, place, "--", "srun", "python", "train.py")
    slurm.wait(job, "COMPLETED", limit_s=300)
    assert 1 == text(output).count(final())  # srun hands stdout and stderr on in any order


ASKED = """import os
from holdfast import cluster
task, node = os.environ["SLURM_PROCID"], os.environ["SLURMD_NODENAME"]
print("task", task, "on", node, "has", cluster.cpus(), "cpus", flush=True)
"""


@concurrently
def test_several_tasks_are_started_by_srun_with_their_cpus(slurm, place):
    """Which srun does not take over by itself; each task is told its own."""
    (place / "asked.py").write_text(ASKED)
    words = ["-N", 2, "--ntasks-per-node", 2, "-c", 1, "--", "python", "asked.py"]
    job, output = submit(slurm, place, *words)
    slurm.wait(job, "COMPLETED", limit_s=300)
    found = sorted(re.findall(r"task (\d) on (\w+) has (\d) cpus", text(output)))
    assert [("0", "1"), ("1", "1"), ("2", "1"), ("3", "1")] == [(task, cpus) for task, _, cpus in found]
    assert 2 == len({node for _, node, _ in found})


ARRAY = """#!/bin/bash
#SBATCH --array=1-3%1 --requeue --open-mode=append --output=out.txt
echo task $SLURM_ARRAY_TASK_ID start ${SLURM_RESTART_COUNT:-0}
[ $SLURM_ARRAY_TASK_ID = 3 ] && [ -z "$SLURM_RESTART_COUNT" ] && scontrol requeue $SLURM_JOB_ID && sleep 60
exit 0
"""


@concurrently
def test_the_id_of_an_arrays_last_task_means_the_whole_array(slurm, place):
    """whole-array-requeued: tasks that were done long ago start again."""
    slurm.sbatch(place, script=ARRAY)
    slurm.until(lambda: {"1", "2", "3"} == set(re.findall(r"task (\d) start 1", text(place / "out.txt"))))


@concurrently
def test_output_in_a_folder_that_is_not_there_fails_without_a_word(slurm, place):
    """log-folder-missing: the script's mkdir comes too late, for not a line of it is run. Slurm 23.02 makes it."""
    made = "#!/bin/bash\n#SBATCH --output=logs/out.txt\nmkdir -p logs\ntouch begun\n"
    job = slurm.sbatch(place, script=made)
    found, end = ({"begun", "logs"}, "COMPLETED") if slurm.version >= (23, 2) else (set(), "FAILED")
    assert end == slurm.wait(job, "FAILED", "COMPLETED", limit_s=300)["JobState"]
    assert {*found, "job.sh"} == {path.name for path in place.iterdir()}


@concurrently
def test_a_directive_with_a_stray_word_is_refused(slurm, place):
    """script-refused; and one after a command is not seen at all: directive-too-late."""
    (place / "job.sh").write_text("#!/bin/bash\n#SBATCH --time=5 stray\ntrue\n")
    done = subprocess.run(
        ["sbatch", "--test-only", "job.sh"],
        check=False,
        cwd=place,
        env=slurm.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "Invalid directive found in batch script: stray" in done.stderr
    late = slurm.sbatch(place, "--hold", script="#!/bin/bash\ntrue\n#SBATCH --job-name=late\n")
    assert "job.sh" == slurm.show(late)["JobName"]
    slurm.ask("scancel", late)


@concurrently
def test_a_doctor_asks_the_real_slurm(slurm, place):
    """What it is set to, and of the partition that is named."""
    done = call(slurm, place, "doctor", "--partition", "preempt", "--json")
    checks = {check["name"]: check["what"] for check in json.loads(done.stdout)["checks"]}
    assert 0 == done.returncode
    assert "preempt: 10 s of grace, then REQUEUE" == checks["preemption"]
    assert "10 s from SIGTERM to SIGKILL" == checks["KillWait"]
    assert checks["scheduler"].startswith("Slurm ")
    assert ["train.py"] == [path.name for path in place.iterdir()]


# Submissions side by side, and sweeps -----------------------------------------------------------------------------

SWEPT = """
import os
from holdfast import Every
name = os.environ.get("HOLDFAST_TASK", sys.argv[2])
with new_run(f"runs/{name}", toy, every=Every(steps=50)) as run:
    for step in run.steps(STEPS):
        time.sleep(0.001 if os.path.exists("fast") else 0.05)
        toy.learn(step)
        if step % 20 == 19:
            print("step", step + 1, flush=True)
        if step == 5 and os.path.exists(f"fails-{name}"):
            sys.exit(3)
print(name, "final", toy.value)
"""
HARD_CODED = SWEPT.replace('f"runs/{name}"', '"runs/x"')


@concurrently
def test_submissions_of_one_script_keep_out_of_each_others_way(slurm, place):
    """One is put back into the queue and waits there, while another of the same script comes and goes."""
    script(place, SWEPT)
    first, waiting = submit(slurm, place, "--", "python", "train.py", STEPS, "a")
    until_resumed(slurm, waiting, 1)
    slurm.ask("scontrol", "requeuehold", first)
    slurm.until(lambda: slurm.show(first)["JobState"] == "PENDING")
    (place / "fast").touch()
    others = [submit(slurm, place, "--", "python", "train.py", STEPS, each) for each in ("b", "c")]
    for each, (job, output) in zip("bc", others, strict=True):
        slurm.wait(job, "COMPLETED", limit_s=300)
        assert f"{each} {final()}" in text(output)
    slurm.ask("scontrol", "release", first)
    slurm.wait(first, "COMPLETED", limit_s=300)
    assert f"a {final()}" in text(waiting)
    assert "resumes at" in text(waiting)
    assert ["train-1", "train-2", "train-3"] == sorted(path.name for path in (place / ".holdfast").glob("train-*"))


@concurrently
def test_a_run_that_another_submission_began_is_not_entered_with_other_arguments(slurm, place):
    """The second one fails at its start, once; the first one's run is as it was."""
    script(place, HARD_CODED)
    (place / "fast").touch()
    first, _ = submit(slurm, place, "--", "python", "train.py", 400, "a")
    slurm.wait(first, "COMPLETED", limit_s=300)
    before = sorted(path for path in (place / "runs").rglob("*"))
    second, output = submit(slurm, place, "--retries", 3, "--", "python", "train.py", 500, "b")
    assert "8:0" == slurm.wait(second, "FAILED", limit_s=300)["ExitCode"]
    assert ["FAILED"] == slurm.endings(second)
    for part in ("began this run with `train.py 400 a`", "as `train.py 500 b`", 'Run(f"runs/x-{seed}")'):
        assert part in text(output)
    assert 1 == text(output).count("holdfast.errors.UsageError")
    assert before == sorted(path for path in (place / "runs").rglob("*"))


@concurrently
def test_a_sweep_runs_each_task_in_a_run_of_its_own_and_requeues_it_alone(slurm, place):
    """Two at once, steps of two. One runs out of time, one fails; what is submitted again is the one that failed."""
    script(place, SWEPT)
    (place / "fails-4").touch()
    job, _ = submit(slurm, place, "--lead", 8, "--array", "0-4:2%2", "--", "python", "train.py", STEPS, "{task}")
    outputs = {task: place / f".holdfast/train-1/slurm-{job}_{task}.out" for task in (0, 2, 4)}
    until_resumed(slurm, outputs[0], 1)
    told = {
        each["name"]: each for each in json.loads(call(slurm, place, "status", "--json", ".holdfast").stdout)["runs"]
    }
    assert "running" == told["train-1/task-0"]["state"]
    assert ("queued", "JobArrayTaskLimit") == (told["train-1/task-4"]["state"], told["train-1/task-4"]["why"])
    end_in(slurm, f"{job}_0", 5)
    slurm.until(lambda: text(outputs[0]).count("(attempt 2)") == 1, 200)
    slurm.until(lambda: slurm.ask("scontrol", "update", f"JobId={job}_0", "TimeLimit=UNLIMITED") == "")
    (place / "fast").touch()
    for task in (0, 2):
        slurm.until(lambda task=task: f"{task} {final()}" in text(outputs[task]), 300)
    slurm.until(lambda: "exit 3" in text(outputs[4]))
    gone(slurm, job)
    assert 1 == text(outputs[2]).count("(attempt ")
    told = {each["name"]: each for each in json.loads(call(slurm, place, "status", "--json").stdout)["runs"]}
    assert ["done", "done", "failed"] == [told[f"train-1/task-{task}"]["state"] for task in (0, 2, 4)]
    assert ["time limit", "done"] == [start["cause"] for start in told["train-1/task-0"]["starts"]]
    (place / "fails-4").unlink()
    done = call(slurm, place, "submit", "--json", "--continue", ".holdfast/train-1")
    assert "1 of 3 tasks are submitted; 2 are done" in done.stderr
    again = json.loads(done.stdout)["job"]
    slurm.until(lambda: f"4 {final()}" in text(place / f".holdfast/train-1/slurm-{again}_4.out"), 300)
    gone(slurm, again)
    assert 2 == call(slurm, place, "submit", "--continue", ".holdfast/train-1").returncode


@concurrently
def test_a_sweep_over_a_file_of_commands(slurm, place):
    """Copied when it was submitted. A task that is requeued by hand goes on in its own run, and the others do not."""
    script(place, SWEPT)
    (place / "runs.txt").write_text(f"python train.py {STEPS} x\n# no command\nNAME='a b' python train.py 40 x\n")
    job, _ = submit(slurm, place, "--hold", "--commands", "runs.txt")
    (place / "runs.txt").unlink()
    slurm.ask("scontrol", "release", job)
    outputs = {task: place / f".holdfast/runs-1/slurm-{job}_{task}.out" for task in (1, 2)}
    until_resumed(slurm, outputs[1], 1)
    slurm.ask("scontrol", "requeue", f"{job}_1")
    (place / "fast").touch()
    for task, steps in ((1, STEPS), (2, 40)):
        slurm.until(lambda task=task, steps=steps: f"{task} {final(steps)}" in text(outputs[task]), 300)
    gone(slurm, job)
    assert [1, 0] == [text(outputs[task]).count("resumes at") for task in (1, 2)]
    told = {each["name"]: each for each in json.loads(call(slurm, place, "status", "--json").stdout)["runs"]}
    assert [["requeued", "done"], ["done"]] == [
        [start["cause"] for start in told[f"runs-1/task-{task}"]["starts"]] for task in (1, 2)
    ]


@concurrently
def test_a_task_is_refused_that_slurm_would_refuse(slurm, place):
    """By the number, and before anything is written."""
    (size,) = re.findall(r"MaxArraySize\s*= (\d+)", slurm.ask("scontrol", "show", "config"))
    most = int(size) - 1
    script(place)
    (place / "job.sh").write_text("#!/bin/bash\n")
    for number, refused in ((most, False), (most + 1, True)):
        words = ["sbatch", "--test-only", f"--array={number}", "job.sh"]
        by_slurm = subprocess.run(words, check=False, cwd=place, env=slurm.environment, capture_output=True)
        ours = call(slurm, place, "submit", "--dry-run", "--array", number, "--", "python", "train.py", "{task}")
        assert [refused, refused] == [by_slurm.returncode != 0, ours.returncode == 2]
    assert f"up to {most} (MaxArraySize)" in ours.stderr


MODULE = "#%Module\nsetenv SET_BY_MODULE yes\n"
BROKEN = "#%Module\nputs stderr {no such licence}\nbreak\n"


@concurrently
def test_set_up_lines_with_environment_modules(slurm, place):
    """`module` is a function whose hooks return what they like; a line that fails ends the job by its own code."""
    init = "/usr/share/modules/init/bash"
    if reason := missing("modulecmd"):
        pytest.skip(reason)
    (place / "own").mkdir()
    (place / "own/good").write_text(MODULE)
    (place / "own/bad").write_text(BROKEN)
    words = ["--setup", f". {init}", "--setup", f"module use {place}/own", "--setup", "module load good"]
    job, output = submit(slurm, place, *words, "--", "printenv", "SET_BY_MODULE")
    slurm.wait(job, "COMPLETED", limit_s=200)
    assert text(output).startswith("yes\n")
    job, output = submit(slurm, place, *words, "--setup", "module load bad", "--", "printenv", "SET_BY_MODULE")
    assert "1:0" == slurm.wait(job, "FAILED", limit_s=200)["ExitCode"]
    assert "holdfast: set-up ended with exit code 1: module load bad" in text(output)
    assert "yes\n" not in text(output)
