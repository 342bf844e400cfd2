"""The digits example on a real Slurm: three time limits, two preemptions, a requeue by hand and a lost node.

The bits are those of the uninterrupted run.
"""

import itertools
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from holdfast import journal
from real_slurm import JOB, Slurm, concurrently
from slurm_digits import PACED, Told
from slurm_stories import after_a_preemption, carried, submit, told


def uninterrupted(place: Path) -> str:
    """What the example prints when nothing happens to it."""
    place.mkdir()
    (place / "fast").touch()
    done = subprocess.run(
        [sys.executable, "-u", "../paced.py"], cwd=place, capture_output=True, text=True, check=True, timeout=200
    )
    return done.stdout


def table(run: Path) -> list[str]:
    """From the signal to the durable checkpoint, and from the requeue to the first new step, by the journal's clock."""
    logs = journal.logs(run)
    lines = ["cause         signal to durable checkpoint   requeue to first new step"]
    for log, following in itertools.pairwise(logs):
        ends = [event for event in log.events if event["event"] in {"requeued", "not_requeued"}]
        saved = [event["time"] for event in log.events if event["event"] == "saved"]
        steps = [event["time"] for event in following.events if event["event"] == "metrics"]
        if ends and saved and steps:
            signal_s, requeue_s = saved[-1] - ends[0]["heard_at"], steps[0] - ends[0]["time"]
            lines.append(f"{ends[0]['cause']:12}  {signal_s:25.3f} s  {requeue_s:24.1f} s")
    return lines


@concurrently
def test_through_everything_that_a_cluster_does_the_bits_are_the_uninterrupted_ones(slurm, place):
    """A script by hand. Each interruption is in Slurm's own record, the journal tells the same, nothing is lost."""
    job = slurm.sbatch(
        prepared(place), "-p", "preempt0", "-w", "n12", "-c", "4", script=JOB.replace("train.py", "paced.py")
    )
    suffer(Told(slurm, place, "n12", job))
    timeout = ["TIMEOUT", "PENDING"]  # and then put back by us
    assert ["PREEMPTED", "PREEMPTED", *timeout * 3, "PENDING", "NODE_FAIL", end(slurm)] == slurm.endings(job)
    slurms, ours = ("not_requeued", "requeued"), ("requeued", "time limit")
    assert [slurms, slurms, ours, ours, ours, slurms] == carried(place / "runs" / "digits")
    same_in_the_end(place, output=place / "out.txt")
    return table(place / "runs" / "digits")


@concurrently
def test_the_same_under_holdfast_submit(slurm, place):
    """With a notice, limits and graces are never waited out: they are requeues in Slurm's record and in the journal."""
    options = ["--partition=preempt0", "--nodelist=n13", "--cpus-per-task=4", "--time=UNLIMITED"]
    words = ["--run", "place", "--lead", "1", *options, "--", sys.executable, "-u", "paced.py"]
    job, output = submit(slurm, prepared(place), *words)
    suffer(Told(slurm, place, "n13", job))
    endings = [each for each in slurm.endings(job) if each != "TIMEOUT"]  # the notice may come as late as the limit
    # On a busy machine Slurm may record the second preemption before the job has put itself back into the queue.
    assert ["PREEMPTED", "PENDING", *["PENDING"] * 4, "NODE_FAIL", end(slurm)] == [
        *endings[:1],
        "PENDING",
        *endings[2:],
    ]
    assert endings[1] in ("PREEMPTED", "PENDING")
    assert f"job_signal: 10 of running JobId={job} successful" in slurm.log()  # preempt_send_user_signal, at the grace
    ends = [(event["event"], event["cause"]) for event in told(place, *journal.AFTERWARDS)]
    slurms, ours = ("not_requeued", "requeued"), ("requeued", "time limit")
    assert ends[1] in ((endings[1] == "PREEMPTED" and slurms) or (), ("requeued", "preempted"))
    assert [slurms, ours, ours, ours, slurms] == [ends[0], *ends[2:]]
    same_in_the_end(place, output)


def prepared(place: Path) -> Path:
    (place / "paced.py").write_text(textwrap.dedent(PACED))
    return place


def suffer(story: Told) -> None:
    """Two preemptions, three time limits, a requeue by hand, a lost node; and then to the end."""
    story.until_it_learns()
    story.preempted(then="preempt")
    story.until_it_learns()
    story.preempted(then="long")
    for _ in range(3):
        story.until_it_learns()
        story.timed_out()
    story.until_it_learns()
    story.requeued_by_hand()
    story.until_it_learns()
    story.node_lost()
    (story.place / "fast").touch()
    ended = story.slurm.wait(story.job, end(story.slurm), limit_s=200)
    assert ("7", "0:0") == (ended["Restarts"], ended["ExitCode"])
    assert "" == story.slurm.ask("squeue", "--noheader", "--jobs", story.job, "--states=PD,R,CG")


def end(slurm: Slurm) -> str:
    """What Slurm calls the last start's end: in `long`, which is not preempted, and after a preemption with a grace."""
    (state,) = after_a_preemption(slurm, "pcancel")
    return state


def same_in_the_end(place: Path, output: Path) -> None:
    """State, metrics and printed lines are the uninterrupted run's; eight attempts are there, six of which stopped."""
    expected = uninterrupted(place / "whole")
    run, whole = place / "runs" / "digits", place / "whole" / "runs" / "digits"
    diff = [sys.executable, "-m", "holdfast", "diff", str(run), str(whole)]
    same = subprocess.run(diff, capture_output=True, text=True, check=False)
    assert 0 == same.returncode, same.stdout
    assert measured(whole) == measured(run)
    assert ["stop"] * 6 + ["", "end"] == [log.last["event"] if log.closed else "" for log in journal.logs(run)]
    text = output.read_text()
    assert set(expected.splitlines()) == set(re.findall(r"^epoch .*", text, re.MULTILINE))
    assert 1 + 7 == text.count("(attempt ")


def measured(run: Path) -> list[tuple]:
    return [(line["step"], line["phase"], line["epoch"], line["values"]) for line in journal.metrics(run)]
