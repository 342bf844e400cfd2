"""A hand-written job script on a real Slurm: whatever ends a job, it goes on, or stays ended as was wished.

Each interruption is asserted from Slurm's own record. The stories begin together and mostly wait.
"""

import os
import re
import signal
import sys
import textwrap
import time
from pathlib import Path

from holdfast import Store, journal
from real_slurm import JOB, Slurm, concurrently
from slurm_stories import (
    TRAIN,
    after_a_preemption,
    begin,
    carried,
    end_in,
    final,
    goes_on_to_the_end,
    not_started_again,
    output,
    preempt,
    preempted,
    running,
    script,
    stays_ended,
    supervised,
    told,
    without_limit,
)
from toy import events


@concurrently
def test_a_notice_before_the_time_limit_is_requeued(slurm, place):
    """--signal=B:USR1@45 of a minute: the job is still RUNNING, and its end is near."""
    script(place)
    job = slurm.sbatch(place, "--time=1", "--signal=B:USR1@40")
    slurm.until(lambda: "stopped by SIGUSR1" in output(place))
    without_limit(slurm, job)
    goes_on_to_the_end(slurm, job, place, ["PENDING", "COMPLETED"], [("requeued", "time limit")])


@concurrently
def test_without_a_notice_the_run_stops_before_the_end_that_it_asked_for(slurm, place):
    """--time=1 and nothing else: squeue tells the time left, and the deadline comes before SIGTERM."""
    script(place)
    job = slurm.sbatch(place, "--time=1")
    slurm.until(lambda: "stopped by deadline" in output(place))
    without_limit(slurm, job)
    goes_on_to_the_end(slurm, job, place)
    assert ["PENDING", "COMPLETED"] == slurm.endings(job)  # no TIMEOUT
    assert [("requeued", "time limit")] == carried(place / "run")


@concurrently
def test_a_preemption_with_requeue_and_no_grace_is_left_to_slurm(slurm, place):
    """Put back once, by Slurm; not a second time by us."""
    assert ["PREEMPTED"] == preempted(slurm, place, "n5", "preempt0")
    assert [("not_requeued", "requeued")] == carried(place / "run")


@concurrently
def test_a_preemption_with_requeue_and_grace_is_left_to_slurm(slurm, place):
    """GraceTime 10."""
    assert ["PREEMPTED"] == preempted(slurm, place, "n6", "preempt")
    assert [("not_requeued", "requeued")] == carried(place / "run")


@concurrently
def test_a_notice_of_a_preemption_is_requeued(slurm, place):
    """preempt_send_user_signal: had the job simply ended, it would count as done."""
    assert ["PENDING"] == preempted(slurm, place, "n8", "preempt", "--signal=B:USR1@5")
    assert [("requeued", "preempted")] == carried(place / "run")
    assert "SIGUSR1" == events(place / "run", "stop")[0]["reason"]


@concurrently
def test_a_command_that_is_done_is_not_started_again_after_a_preemption(slurm, place):
    """Since 24.05 Slurm starts its job once more."""
    command = "echo begun\n[ -e first ] && exit 0\ntouch first\ntrap 'exit 75' TERM USR1\nwhile sleep 0.1; do :; done\n"
    job = slurm.sbatch(place, "-p", "preempt", "-w", "n21", "-c", "4", script=supervised(place, text=command))
    running(slurm, job, place, "begun\n")
    preempt(slurm, "n21", place)
    slurm.until(lambda: slurm.endings(job)[-1:] == ["COMPLETED"], 200)
    assert after_a_preemption(slurm, "preempt") == slurm.endings(job)[1:]
    assert 2 == output(place).count("begun\n")


@concurrently
def test_a_step_that_is_told_at_the_beginning_of_the_grace_is_requeued(slurm, place):
    """srun's tasks get SIGTERM while the job is still RUNNING; only number 0 speaks for the job."""
    text = JOB.replace("exec ", "srun -n 2 -c 2 bash -c 'cd part-$SLURM_PROCID && exec ").replace(
        "train.py", "../train.py'"
    )
    for part in ("part-0", "part-1"):
        (place / part).mkdir()
    script(place)
    job = slurm.sbatch(place, "-p", "preempt", "-w", "n9", "-n", "2", "-c", "2", script=text)
    running(slurm, job, place)
    preempt(slurm, "n9", place)
    slurm.until(lambda: slurm.show(job)["Restarts"] == "1")
    (place / "part-0" / "fast").touch(), (place / "part-1" / "fast").touch()
    slurm.wait(job, "COMPLETED", limit_s=200)
    starts = len(after_a_preemption(slurm, "preempt"))
    assert 2 * starts == output(place).count(final())
    assert str(starts) == slurm.show(job)["Restarts"]
    assert [("requeued", "preempted")] == carried(place / "part-0" / "run")
    assert [] == carried(place / "part-1" / "run")


@concurrently
def test_a_requeue_by_hand_is_left_to_slurm_also_during_the_restore(slurm, place):
    """Twice: in the midst of training, and while the second attempt restores."""
    body = """
    import pathlib
    class Slow(Toy):
        def load_state_dict(self, state):
            pathlib.Path("restoring").touch()
            time.sleep(3)
            super().load_state_dict(state)
    toy = Slow()
    """
    job = begin(slurm, place, body=textwrap.dedent(body) + TRAIN)
    slurm.ask("scontrol", "requeue", job)
    slurm.until((place / "restoring").exists)
    slurm.ask("scontrol", "requeue", job)
    goes_on_to_the_end(slurm, job, place)
    assert "2" == slurm.show(job)["Restarts"]
    assert [("not_requeued", "requeued")] * 2 == carried(place / "run")


@concurrently
def test_a_task_of_an_array_is_requeued_alone(slurm, place):
    """<array>_<task>; its neighbour runs on."""
    for task in ("1", "2"):
        (place / task).mkdir()
        script(place / task)
    text = JOB.replace("out.txt", "out-%a.txt").replace("exec ", "cd $SLURM_ARRAY_TASK_ID; exec ")
    array = slurm.sbatch(place, "--array=1-2", script=text)
    slurm.until(lambda: all("step 20\n" in output(place, f"out-{task}.txt") for task in (1, 2)))
    slurm.ask("scontrol", "update", f"JobId={array}_1", "EndTime=now+2")
    number = slurm.show(f"{array}_1")["JobId"]
    slurm.until(lambda: "TIMEOUT" in slurm.endings(number))
    slurm.until(lambda: slurm.show(f"{array}_1")["Restarts"] == "1")
    slurm.ask("scontrol", "update", f"JobId={array}_1", "TimeLimit=UNLIMITED")
    for task in ("1", "2"):
        (place / task / "fast").touch()
        slurm.wait(f"{array}_{task}", "COMPLETED")
        assert final() in output(place, f"out-{task}.txt")
    assert [("requeued", "time limit")] == carried(place / "1" / "run")
    assert ([], "0") == (carried(place / "2" / "run"), slurm.show(f"{array}_2")["Restarts"])


@concurrently
def test_a_heterogeneous_job_is_requeued_by_its_leaders_id(slurm, place):
    """Both parts of it."""
    text = JOB.replace("exec ", "#SBATCH hetjob\nexec ")
    job = begin(slurm, place, text=text)
    end_in(slurm, job, 2)
    slurm.until(lambda: "TIMEOUT" in slurm.endings(job))
    slurm.until(lambda: "(attempt 2)" in output(place))
    goes_on_to_the_end(slurm, job, place)
    assert ["TIMEOUT", "PENDING", "COMPLETED"] == slurm.endings(job)
    assert ["TIMEOUT", "PENDING"] == slurm.endings(str(int(job) + 1))[:2]
    assert [("requeued", "time limit")] == carried(place / "run")


@concurrently
def test_a_task_with_an_environment_of_its_own_knows_its_supervisor(slurm, place):
    """srun --export=NONE: the run leaves the job to `holdfast run`, which stops it in time, and speaks for the job."""
    script(place)
    holdfast = Path(sys.executable).parent / "holdfast"
    text = JOB.replace("exec ", f"exec {holdfast} run --run job -- srun --export=NONE ")
    job = running(slurm, slurm.sbatch(place, script=text), place)
    end_in(slurm, job, 2)
    without_limit(slurm, job)
    goes_on_to_the_end(slurm, job, place)
    assert [] == carried(place / "run")
    ours = [
        event["cause"] for event in journal.read(place / "job" / "supervisor.jsonl") if event["event"] == "requeued"
    ]
    assert (["time limit"], "1") == (ours, slurm.show(job)["Restarts"])


@concurrently
def test_no_requeue_gets_a_successor(slurm, place):
    """Slurm refuses; another job begins after this one and goes on."""
    text = JOB.replace("--requeue", "--no-requeue")
    job = begin(slurm, place, "--job-name=mine", text=text)
    end_in(slurm, job, 2)
    slurm.until(lambda: "goes on after it" in output(place))
    successor = re.findall(r"Job (\d+) goes on after it", output(place))[0]
    goes_on_to_the_end(slurm, successor, place)
    assert (["TIMEOUT"], ["COMPLETED"]) == (slurm.endings(job), slurm.endings(successor))
    assert "mine" == slurm.show(successor)["JobName"]
    assert [("requeued", "time limit"), ("submitted", "time limit")] == carried(place / "run")


@concurrently
def test_a_lost_node_and_then_a_ghost(slurm, place):
    """A dead machine: Slurm requeues. A dead slurmd: the old attempt runs on and is superseded; no step counts."""
    script(place, TRAIN.replace("0.05", "0.2"))  # on a busy machine, too, the old attempt is still at work at the end
    job = slurm.sbatch(place, "-w", "n10")
    running(slurm, job, place)
    slurm.tend("kill-node", "n10")
    slurm.until(lambda: slurm.show(job)["Restarts"] == "1")
    assert ["NODE_FAIL"] == slurm.endings(job)
    slurm.ask("scontrol", "update", f"JobId={job}", "ReqNodeList=n11")
    slurm.until(lambda: "(attempt 2)" in output(place))
    assert "n11" == slurm.show(job)["NodeList"]
    slurm.tend("start-node", "n10")

    os.kill(slurm.pid("n11"), signal.SIGKILL)  # slurmd alone: what it started runs on
    slurm.until(lambda: slurm.show(job)["Restarts"] == "2")
    slurm.ask("scontrol", "update", f"JobId={job}", "ReqNodeList=n10")
    slurm.until(lambda: "attempt 2 was superseded by a later one" in output(place))
    (place / "fast").touch()
    slurm.tend("start-node", "n11")
    slurm.wait(job, "COMPLETED", limit_s=200)
    assert ["NODE_FAIL", "NODE_FAIL", "COMPLETED"] == slurm.endings(job)
    assert final() in output(place)
    assert [] == carried(place / "run")


@concurrently
def test_scancel_after_a_preemption_and_within_the_grace_of_one_stays_ended(slurm, place):
    """Slurm still shows when the earlier start was preempted; a user may cancel what is about to be preempted."""
    job = begin(slurm, place, "-p", "pcancel", "-w", "n20", "-c", "4")
    preempt(slurm, "n20", place, seconds=1)
    slurm.until(lambda: "(attempt 2)" in output(place))
    slurm.ask("scancel", job)
    stays_ended(slurm, job, place)
    slurm.ask("scontrol", "requeue", job)
    slurm.until(lambda: "(attempt 3)" in output(place))
    preempt(slurm, "n20", place, seconds=1)
    slurm.until(lambda: slurm.show(job).get("PreemptTime", "None") != "None")
    time.sleep(3)  # Slurm writes seconds: in the same one as the preemption it would count as that
    slurm.ask("scancel", job)
    not_started_again(slurm, job, "CANCELLED")
    assert ["PREEMPTED", "PENDING", "CANCELLED", "PENDING", "CANCELLED"] == slurm.endings(job)
    assert [("requeued", "preempted"), ("not_requeued", "cancelled"), ("not_requeued", "unclear")] == carried(
        place / "run"
    )


SLOW_SAVE = """
import pathlib
class Slow(Toy):
    def state_dict(self):
        if pathlib.Path("slow").exists():
            pathlib.Path("saving").touch()
            time.sleep(3)
        return super().state_dict()
toy = Slow()
"""


@concurrently
def test_scancel_during_a_save_stays_ended(slurm, place):
    """The save in progress comes to its end, and then the one of the stop."""
    job = begin(slurm, place, body=SLOW_SAVE + TRAIN)
    (place / "slow").touch()
    slurm.until((place / "saving").exists)
    slurm.ask("scancel", job)
    stays_ended(slurm, job, place)


@concurrently
def test_scancel_during_the_save_of_a_notice_stays_ended(slurm, place):
    """USR1 shortly before the end, and while it saves, the user cancels: looked at again immediately before."""
    job = begin(
        slurm, place, "--time=1", "--signal=B:USR1@50", body=SLOW_SAVE + TRAIN.replace("Every(steps=50)", "None")
    )
    (place / "slow").touch()
    slurm.until((place / "saving").exists)
    slurm.ask("scancel", job)
    assert "SIGUSR1" == stays_ended(slurm, job, place)["reason"]


@concurrently
def test_scancel_of_a_whole_array_stays_ended(slurm, place):
    """Every task, with a checkpoint each."""
    for task in ("1", "2"):
        (place / task).mkdir()
        script(place / task)
    text = JOB.replace("out.txt", "%a/out.txt").replace("exec ", "cd $SLURM_ARRAY_TASK_ID; exec ")
    array = slurm.sbatch(place, "--array=1-2", script=text)
    slurm.until(lambda: all("step 20\n" in output(place / task) for task in ("1", "2")))
    numbers = [slurm.show(f"{array}_{task}")["JobId"] for task in ("1", "2")]
    slurm.ask("scancel", array)
    for number, task in zip(numbers, ("1", "2"), strict=True):
        stays_ended(slurm, number, place / task)


@concurrently
def test_a_signal_by_hand_is_unclear_and_said(slurm, place):
    """scancel --batch --signal=TERM, twice, before the first save: saved, ended, and the line to type."""
    job = begin(slurm, place, body=TRAIN.replace("Every(steps=50)", "None"))
    slurm.ask("bash", "-c", f"for i in 1 2; do scancel --batch --signal=TERM {job} & done; wait")
    assert "75:0" == not_started_again(slurm, job, "FAILED")["ExitCode"]
    assert "why SIGTERM came is unclear (state RUNNING, reason None), so it is not requeued" in output(place)
    assert [("not_requeued", "unclear")] == carried(place / "run")
    assert events(place / "run", "stop")[0]["step"] == Store(place / "run").latest().step


@concurrently
def test_a_requeue_that_is_due_while_slurmctld_is_down_comes_later(shared, place):
    """It is tried again, it is said what to type should that not do; the controller comes back, and so does the job."""
    short = shared.directory.with_name("own")  # the names of its sockets lie below
    own = Slurm(short, SC_NODES="1", SC_PROCTRACK="linuxproc", SC_KILLWAIT="60")
    own.begin()
    try:
        script(place)
        job = running(own, own.sbatch(place, "--time=1"), place, "step 100\n")  # by then it knows its end
        os.kill(own.pid("slurmctld"), signal.SIGTERM)
        own.until(lambda: "trying again. To go on, type: scontrol requeue" in output(place))
        assert "stopped by deadline" in output(place)
        own.tend("up")
        without_limit(own, job)
        goes_on_to_the_end(own, job, place)
        assert [("requeued", "time limit")] == carried(place / "run")
    finally:
        own.tend("down")


# Under `holdfast run` ------------------------------------------------------------------------------------------------


def left(place):
    """Command lines of the job's processes that still run on this machine."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            ours = f"SLURM_SUBMIT_DIR={place}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
            found += [Path(f"/proc/{pid}/cmdline").read_bytes()] * ours
        except OSError:  # it is over
            continue
    return found


@concurrently
def test_a_command_that_hangs_at_its_time_limit_is_killed_and_requeued(slurm, place):
    """KillWait is 10 s: ours is over before Slurm's, and nothing of it is left."""
    hangs = 'echo begun $SLURM_RESTART_COUNT; [ -n "$SLURM_RESTART_COUNT" ] && exit 0; '
    hangs += "trap '' TERM; sleep 600 & wait; sleep 600"
    number = slurm.sbatch(place, script=supervised(place, text=hangs))
    running(slurm, number, place, "begun")
    time.sleep(4)  # KillWait is asked meanwhile
    end_in(slurm, number, 5)
    slurm.until(lambda: slurm.show(number)["Restarts"] == "1")
    slurm.wait(number, "COMPLETED")
    assert "killed" in [event["event"] for event in told(place, "killed")]
    assert ["TIMEOUT", "PENDING", "COMPLETED"] == slurm.endings(number)
    slurm.until(lambda: not left(place), 10)


@concurrently
def test_a_step_that_hears_of_the_preemption_before_us_is_not_started_again(slurm, place):
    """srun's task gets SIGTERM at the beginning of the grace: it stops with 75, and Slurm says why."""
    script(place)
    text = supervised(place, command=f"srun -n 1 {sys.executable} -u train.py")
    number = slurm.sbatch(place, "-p", "preempt", "-w", "n14", "-c", "4", script=text)
    running(slurm, number, place)
    preempt(slurm, "n14", place)
    slurm.until(lambda: slurm.show(number)["Restarts"] == "1")
    slurm.until(lambda: output(place).count("resumes at") == 1)
    assert 2 == len(told(place, "start"))
    assert ["preempted"] == [event["cause"] for event in told(place, "requeued")]
    (place / "fast").touch()
    slurm.wait(number, "COMPLETED", limit_s=200)
    assert final() in output(place)
