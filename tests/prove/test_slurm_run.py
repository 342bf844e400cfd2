"""`exec holdfast run -- ...` in a hand-written job script, on a real Slurm: any command goes on, or stays ended.

Each interruption is asserted from Slurm's own record. The stories begin together and mostly wait.
"""

import os
import sys
import time
from pathlib import Path

from real_slurm import concurrently
from slurm_stories import (
    end_in,
    final,
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
