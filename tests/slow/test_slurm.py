"""What a real Slurm does to a job: it goes on, or stays ended as was wished. tests/prove has all other stories.

Each interruption is asserted from Slurm's own record. The stories begin together and mostly wait.
"""

import os
import signal
import sys

from real_slurm import concurrently
from slurm_stories import (
    STEPS,
    TRAIN,
    begin,
    call,
    carried,
    end_in,
    final,
    goes_on_to_the_end,
    output,
    preempted,
    running,
    script,
    stays_ended,
    submit,
    supervised,
    text,
    told,
    without_limit,
)


@concurrently
def test_a_time_limit_is_requeued_by_the_run_itself(slurm, place):
    """TIMEOUT in Slurm's record, then the same job again; nobody else has requeued it."""
    job = begin(slurm, place)
    end_in(slurm, job, 2)
    slurm.until(lambda: "TIMEOUT" in slurm.endings(job))
    without_limit(slurm, job)
    goes_on_to_the_end(slurm, job, place, ["TIMEOUT", "PENDING", "COMPLETED"], [("requeued", "time limit")])


@concurrently
def test_a_preemption_with_cancel_is_requeued(slurm, place):
    """Slurm would let it end for ever."""
    assert ["PREEMPTED", "PENDING"] == preempted(slurm, place, "n7", "pcancel")
    assert [("requeued", "preempted")] == carried(place / "run")


@concurrently
def test_scancel_while_training_stays_ended(slurm, place):
    """With a checkpoint; the line to type is there for who has changed his mind, and does what it says."""
    job = begin(slurm, place)
    slurm.ask("scancel", job)
    stays_ended(slurm, job, place)
    assert f"scontrol requeue {job} || sbatch --chdir={place} {place}/job.sh" in output(place)
    slurm.ask("scontrol", "requeue", job)
    slurm.until(lambda: "(attempt 2)" in output(place))


@concurrently
def test_a_plain_script_that_saves_itself_goes_on_after_each_time_limit(slurm, place):
    """Under `holdfast run`. Told to stop, it exits with 75; the job is requeued twice, and done in the third start."""
    number = slurm.sbatch(place, script=supervised(place))
    for start in ("0", "1"):
        running(slurm, number, place, f"begun {start}\n")
        end_in(slurm, number, 5)
        without_limit(slurm, number, str(int(start) + 1))
    slurm.wait(number, "COMPLETED")
    said = [line for line in output(place).splitlines() if line.startswith(("begun", "saved"))]
    assert ["begun 0", "saved 0", "begun 1", "saved 1", "begun 2"] == said
    endings = [how for how in slurm.endings(number) if how != "TIMEOUT"]  # or we had stopped it just before
    assert ["PENDING", "PENDING", "COMPLETED"] == endings
    assert ["time limit"] * 2 == [event["cause"] for event in told(place, "requeued")]


@concurrently
def test_a_submitted_command_runs_to_its_end(slurm, place):
    """By `holdfast submit`: once, and its output is where submit said."""
    job, file = submit(slurm, place, "--", "python", "train.py", 20)
    assert "COMPLETED" == slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED")["JobState"]
    assert ["step 20", "finished: 20 steps in 1 attempt", final(20).strip(), "done at step 20 after 1 start"] == [
        line.split(": ", 2)[-1] for line in text(file).splitlines()[-4:]
    ]
    assert place / f".holdfast/train-1/slurm-{job}.out" == file
    assert ["COMPLETED"] == slurm.endings(job)


BAD = """
bad = "bad-" + os.environ["SLURMD_NODENAME"]
with new_run("run", toy, every=Every(steps=50)) as run:
    for step in run.steps(STEPS):
        toy.learn(step)
        if step == 70 and (not os.path.exists("bad") or os.path.exists(bad)):
            open("bad", "w"), open(bad, "w")
            open("/proc/self/mem", "rb").read(1)  # the kernel answers EIO
print("final", toy.value)
"""


@concurrently
def test_a_job_leaves_the_node_where_two_starts_died_of_input_output_errors(slurm, place):
    """It goes on elsewhere, to the same bits. What its user excluded stays excluded."""
    script(place, BAD)
    command = f"{sys.executable} -u train.py"
    number = slurm.sbatch(place, "--exclude=n[3-4]", script=supervised(place, command=command))
    slurm.wait(number, "COMPLETED", "FAILED", limit_s=200)
    said = output(place)
    assert ["PENDING", "COMPLETED"] == slurm.endings(number), said
    first, second = (event["node"] for event in told(place, "begin"))
    assert [(first, 1), (first, 2)] == [(each["node"], each["node_deaths"]) for each in told(place, "exit")[:2]]
    assert first != second
    excluded = slurm.ask("scontrol", "show", "hostnames", slurm.show(number)["ExcNodeList"]).split()
    assert {"n3", "n4", first} == {*excluded}
    assert "train.py: exit 1 (bad node); its node may be at fault: started again in 5 s" in said
    assert f"job {number}: bad node; requeued without {first}, where starts died by the node's fault" in said
    assert final() in said
    shown = call(slurm, place, "status", "place").stdout
    assert f"not on {first} for 24 h" in shown, shown


@concurrently
def test_a_lost_node_and_its_ghost(slurm, place):
    """slurmd alone is gone: the old supervisor is asked to leave, and the new start waits. No step is done twice."""
    script(place, TRAIN.replace("0.05", "0.2"))  # the old attempt is still at work when the new one begins
    command = f"{sys.executable} -u train.py"
    number = slurm.sbatch(place, "-w", "n15", script=supervised(place, command=command))
    running(slurm, number, place)
    os.kill(slurm.pid("n15"), signal.SIGKILL)
    slurm.until(lambda: slurm.show(number)["Restarts"] == "1")
    slurm.ask("scontrol", "update", f"JobId={number}", "ReqNodeList=n16")
    slurm.until(lambda: "Slurm gave this node up and has started the job elsewhere" in output(place))
    slurm.until(lambda: "(attempt 2)" in output(place))
    slurm.tend("start-node", "n15")
    (place / "fast").touch()
    slurm.wait(number, "COMPLETED", limit_s=200)
    assert "superseded" not in output(place)
    assert all(1 == output(place).count(f"step {step}\n") for step in range(20, STEPS, 20))
    assert ["NODE_FAIL", "COMPLETED"] == slurm.endings(number)
    assert final() in output(place)
    assert [] == told(place, "requeued")
    assert "end" == told(place, "failed", "stop", "end")[-1]["event"]
