"""`exec holdfast run -- ...` in a hand-written job script, on a real Slurm: any command goes on, or stays ended.

Each interruption is asserted from Slurm's own record. The stories begin together and mostly wait.
"""

import os
import signal
import sys
import time
from pathlib import Path

from test_slurm import TRAIN, final, output, preempt, running, script

from holdfast import journal
from real_slurm import JOB, concurrently

HEAD = JOB.partition("exec ")[0]
RUN = f"exec {sys.executable} -m holdfast run --run place"
# It counts its starts, saves when it is told to, and is done in the third.
COUNTS = """
n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n
trap 'echo saved $n; exit 75' TERM USR1
echo begun $n
for i in $(seq 1200); do [ $n -ge 2 ] && exit 0; sleep 0.1; done
"""


def job(place, *, options="", command="bash command.sh", text=COUNTS):
    (place / "command.sh").write_text(text)
    return f"{HEAD}{RUN} {options} -- {command}\n"


def told(place, *kinds):
    """Lines of the supervisor's journal, of these kinds."""
    return [event for event in journal.read(place / "place" / "supervisor.jsonl") if event["event"] in kinds]


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
def test_a_plain_script_that_saves_itself_goes_on_after_each_time_limit(slurm, place):
    """It exits with 75 when it is told to; the job is requeued twice, and done in the third start."""
    number = slurm.sbatch(place, script=job(place))
    for start in ("0", "1"):
        running(slurm, number, place, f"begun {start}\n")
        slurm.ask("scontrol", "update", f"JobId={number}", "EndTime=now+5")
        slurm.until(lambda start=start: slurm.show(number)["Restarts"] == str(int(start) + 1))
        slurm.until(lambda: slurm.ask("scontrol", "update", f"JobId={number}", "TimeLimit=UNLIMITED") == "")
    slurm.wait(number, "COMPLETED")
    said = [line for line in output(place).splitlines() if line.startswith(("begun", "saved"))]
    assert ["begun 0", "saved 0", "begun 1", "saved 1", "begun 2"] == said
    endings = [how for how in slurm.endings(number) if how != "TIMEOUT"]  # or we had stopped it just before
    assert ["PENDING", "PENDING", "COMPLETED"] == endings
    assert ["time limit"] * 2 == [event["cause"] for event in told(place, "requeued")]


@concurrently
def test_a_command_that_hangs_at_its_time_limit_is_killed_and_requeued(slurm, place):
    """KillWait is 10 s: ours is over before Slurm's, and nothing of it is left."""
    hangs = "echo begun $SLURM_RESTART_COUNT; [ -n \"$SLURM_RESTART_COUNT\" ] && exit 0; trap '' TERM; sleep 600 & wait; sleep 600"
    number = slurm.sbatch(place, script=job(place, text=hangs))
    running(slurm, number, place, "begun")
    time.sleep(4)  # KillWait is asked meanwhile
    slurm.ask("scontrol", "update", f"JobId={number}", "EndTime=now+5")
    slurm.until(lambda: slurm.show(number)["Restarts"] == "1")
    slurm.wait(number, "COMPLETED")
    assert "killed" in [event["event"] for event in told(place, "killed")]
    assert ["TIMEOUT", "PENDING", "COMPLETED"] == slurm.endings(number)
    slurm.until(lambda: not left(place), 10)


@concurrently
def test_scancel_of_a_supervised_script_stays_ended(slurm, place):
    """It saved, and is not started again; what would, is said."""
    number = slurm.sbatch(place, script=job(place))
    running(slurm, number, place, "begun 0\n")
    assert left(place)
    slurm.ask("scancel", number)
    slurm.wait(number, "CANCELLED")
    slurm.until(lambda: "is not requeued" in output(place))
    time.sleep(8)
    assert ("CANCELLED", "0") == (slurm.show(number)["JobState"], slurm.show(number)["Restarts"])
    assert "saved 0\n" in output(place)
    assert f"job {number} was cancelled, and is not requeued. To go on, type: scontrol requeue {number}" in output(
        place
    )
    slurm.until(lambda: not left(place), 10)


@concurrently
def test_a_crash_in_a_job_is_a_failure(slurm, place):
    """No requeue repeats it; the job's exit code is 8."""
    number = slurm.sbatch(place, script=job(place, text="echo begun; exit 3"))
    assert "8:0" == slurm.wait(number, "FAILED")["ExitCode"]
    assert "begun\nholdfast: command.sh: exit 3\n" in output(place)
    assert ["FAILED"] == slurm.endings(number)


@concurrently
def test_a_crash_is_retried_within_the_job(slurm, place):
    number = slurm.sbatch(place, script=job(place, options="--retries 3", text=COUNTS.replace("sleep 0.1", "exit 9")))
    slurm.wait(number, "COMPLETED")
    assert ["retry", "retry", "done"] == [event["do"] for event in told(place, "next")]
    assert ["COMPLETED"] == slurm.endings(number)


@concurrently
def test_a_step_that_hears_of_the_preemption_before_us_is_not_started_again(slurm, place):
    """srun's task gets SIGTERM at the beginning of the grace: it stops with 75, and Slurm says why."""
    script(place)
    text = job(place, command=f"srun -n 1 {sys.executable} -u train.py")
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


@concurrently
def test_a_lost_node_and_its_ghost(slurm, place):
    """slurmd alone is gone: the old supervisor runs on beside the new one, until its run is superseded; it requeues nothing."""
    script(place, TRAIN.replace("0.05", "0.2"))  # the old attempt is still at work when the new one begins
    number = slurm.sbatch(place, "-w", "n15", script=job(place, command=f"{sys.executable} -u train.py"))
    running(slurm, number, place)
    os.kill(slurm.pid("n15"), signal.SIGKILL)
    slurm.until(lambda: slurm.show(number)["Restarts"] == "1")
    slurm.ask("scontrol", "update", f"JobId={number}", "ReqNodeList=n16")
    slurm.until(lambda: "attempt 1 was superseded by a later one" in output(place))
    slurm.tend("start-node", "n15")
    (place / "fast").touch()
    slurm.wait(number, "COMPLETED", limit_s=200)
    assert ["NODE_FAIL", "COMPLETED"] == slurm.endings(number)
    assert final() in output(place)
    assert [] == told(place, "requeued")
    assert "end" == told(place, "failed", "stop", "end")[-1]["event"]
