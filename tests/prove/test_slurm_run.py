"""`exec holdfast run -- ...` in a hand-written job script, on a real Slurm: any command goes on, or stays ended.

Each interruption is asserted from Slurm's own record. The stories begin together and mostly wait.
"""

import os
import sys
import time
from pathlib import Path

from real_slurm import concurrently
from slurm_stories import (
    COUNTS,
    end_in,
    final,
    not_started_again,
    output,
    preempt,
    running,
    script,
    supervised,
    told,
)


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
    hangs = "echo begun $SLURM_RESTART_COUNT; [ -n \"$SLURM_RESTART_COUNT\" ] && exit 0; trap '' TERM; sleep 600 & wait; sleep 600"
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
def test_scancel_of_a_supervised_script_stays_ended(slurm, place):
    """It saved, and is not started again; what would, is said."""
    number = slurm.sbatch(place, script=supervised(place))
    running(slurm, number, place, "begun 0\n")
    assert left(place)
    slurm.ask("scancel", number)
    slurm.until(lambda: "is not requeued" in output(place))
    assert "0" == not_started_again(slurm, number, "CANCELLED")["Restarts"]
    assert "saved 0\n" in output(place)
    assert f"job {number} was cancelled, and is not requeued. To go on, type: scontrol requeue {number}" in output(
        place
    )
    slurm.until(lambda: not left(place), 10)


@concurrently
def test_a_crash_in_a_job_is_a_failure(slurm, place):
    """No requeue repeats it; the job's exit code is 8."""
    number = slurm.sbatch(place, script=supervised(place, text="echo begun; exit 3"))
    assert "8:0" == slurm.wait(number, "FAILED")["ExitCode"]
    assert "begun\nholdfast: command.sh: exit 3\n" in output(place)
    assert ["FAILED"] == slurm.endings(number)


@concurrently
def test_a_crash_is_retried_within_the_job(slurm, place):
    number = slurm.sbatch(
        place, script=supervised(place, options="--retries 3", text=COUNTS.replace("sleep 0.1", "exit 9"))
    )
    slurm.wait(number, "COMPLETED")
    assert ["retry", "retry", "done"] == [event["do"] for event in told(place, "next")]
    assert ["COMPLETED"] == slurm.endings(number)


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
