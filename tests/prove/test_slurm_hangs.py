"""Hangs in jobs of a real Slurm: the allocation is given back, and a job that Slurm suspends does not hang."""

import time

from real_slurm import concurrently
from slurm_stories import final, script, submit, text

AFTER_S = 4
HANGS = """
import threading
lock = threading.Lock()
lock.acquire()
with new_run("run", toy, every=Every(steps=50)) as run:
    for step in run.steps(400):
        time.sleep(0.005)
        toy.learn(step)
        if step == 120:
            lock.acquire()
"""
SLOW = """
with new_run("run", toy, every=Every(steps=50)) as run:
    for step in run.steps(20):
        toy.learn(step)
        print("slow" if step == 9 else step, flush=True)
        time.sleep(18 if step == 9 else 0.2)
print("final", toy.value)
"""
OPTIONS = ("--on-hang", "restart", "--hang-after", AFTER_S, "--grace", 3)


@concurrently
def test_the_second_hang_gives_the_allocation_back(slurm, place):
    """Long before its time is up, with 8, and without a requeue."""
    script(place, HANGS)
    job, file = submit(slurm, place, *OPTIONS, "--", "python", "train.py")
    ended = slurm.wait(job, "FAILED", limit_s=200)
    assert ("8:0", "0") == (ended["ExitCode"], ended["Restarts"])
    assert 2 == text(file).count("no sign of life")
    assert "it hung twice at step 120" in text(file)
    assert ["FAILED"] == slurm.endings(job)


@concurrently
def test_a_job_that_slurm_suspends_does_not_hang(slurm, place):
    """Gang scheduling does the same: supervisor and command stand still, here in the middle of a slow step."""
    script(place, SLOW)
    job, file = submit(slurm, place, "--on-hang", "restart", "--hang-after", 10, "--", "python", "train.py")
    slurm.until(lambda: "slow\n" in text(file))
    time.sleep(1)  # the supervisor has seen that the step began
    slurm.ask("scontrol", "suspend", job)
    slurm.until(lambda: slurm.show(job)["JobState"] == "SUSPENDED")
    time.sleep(15)  # what must not be told cannot be waited for
    slurm.ask("scontrol", "resume", job)
    slurm.wait(job, "COMPLETED", limit_s=200)
    assert "no sign of life" not in text(file)
    assert final(20) in text(file)
