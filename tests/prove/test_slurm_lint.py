"""The commonest fixes of lint on a real Slurm: what happens before, and after lint's own edit of the script.

Each story runs both scripts. The work saves when it hears SIGTERM or SIGUSR1, and needs two seconds for it.
"""

from holdfast.lint import lint_script
from lint_faults import edited
from real_slurm import concurrently
from slurm_stories import HOLDFAST, end_in, text

TRAIN = """
import os, signal, sys, time
def save(number, frame):
    for each in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(each, signal.SIG_IGN)
    time.sleep(2)
    print("saved", flush=True)
    sys.exit(75)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, save)
print("begun", os.environ.get("SLURM_RESTART_COUNT", 0), flush=True)
while not os.path.exists("../fast"):
    time.sleep(0.1)
print("finished", flush=True)
"""
OUT = "--output=out.txt"


def job(body, options=""):
    """A script that finds this environment's holdfast and Python."""
    return f"#!/bin/bash\n#SBATCH {OUT} {options}\nPATH={HOLDFAST.parent}:$PATH\n{body}\n"


def mended(script, rule):
    """The script with lint's own edits for that rule, which is found in it and not in the result."""
    (finding,) = (each for each in lint_script(script) if each.rule == rule)
    assert finding.edits
    result = edited(script, finding.edits)
    assert rule not in [each.rule for each in lint_script(result)]
    return result


def submitted(slurm, place, script, *options):
    """The two jobs: as the script is, and as it is mended; each in a place of its own."""
    jobs = []
    for name, each in zip(("before", "after"), script, strict=True):
        (place / name).mkdir()
        (place / name / "train.py").write_text(TRAIN)
        jobs.append(slurm.sbatch(place / name, *options, script=each))
    return jobs


def said(place, name, file="out.txt"):
    path = place / name / file
    return text(path) if path.exists() else ""


def begun(slurm, place, jobs):
    for name, _ in zip(("before", "after"), jobs, strict=True):
        slurm.until(lambda name=name: "begun" in said(place, name))


def over(slurm, job):
    """Wait until this start has ended, for good or to be requeued."""
    slurm.until(lambda: slurm.endings(job) or slurm.show(job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED"))


def tell_shells(slurm, jobs):
    """As --signal=B:USR1 does."""
    for each in jobs:
        slurm.ask("scancel", "--batch", "--signal=USR1", each)


def notice_saves_only_after(slurm, place, script, rule):
    """Before, the notice kills what has not saved; after, it has saved and goes on."""
    jobs = submitted(slurm, place, (script, mended(script, rule)))
    begun(slurm, place, jobs)
    tell_shells(slurm, jobs)
    over(slurm, jobs[0])
    assert "saved" not in said(place, "before")
    over(slurm, jobs[1])
    assert "saved" in said(place, "after")
    slurm.ask("scancel", *jobs)


@concurrently
def test_notice_unheard(slurm, place):
    """`exec holdfast run --` before the program."""
    options = "--requeue --open-mode=append --signal=B:USR1@60"
    notice_saves_only_after(slurm, place, job("python -u train.py", options), "notice-unheard")


@concurrently
def test_holdfast_not_exec(slurm, place):
    """`exec` before `holdfast run`."""
    options = "--requeue --open-mode=append --signal=B:USR1@60"
    notice_saves_only_after(slurm, place, job("holdfast run -- python -u train.py", options), "holdfast-not-exec")


@concurrently
def test_wait_once(slurm, place):
    """A loop around `wait`."""
    body = "set -e\ntrap 'kill -TERM $pid' USR1\npython -u train.py & pid=$!\nwait $pid"
    notice_saves_only_after(slurm, place, job(body, "--signal=B:USR1@60"), "wait-once")


@concurrently
def test_trap_hidden(slurm, place):
    """The program in the background, and a loop that waits: the trap runs at once, and the status is kept."""
    script = job("trap 'echo heard' USR1\npython -u train.py > log\necho status $?", "--signal=B:USR1@60")
    jobs = submitted(slurm, place, (script, mended(script, "trap-hidden")))
    for name in ("before", "after"):
        slurm.until(lambda name=name: "begun" in said(place, name, "log"))
    tell_shells(slurm, jobs)
    slurm.until(lambda: "heard" in said(place, "after"))
    assert "heard" not in said(place, "before")
    (place / "fast").touch()
    for name, each in zip(("before", "after"), jobs, strict=True):
        slurm.wait(each, "COMPLETED", "FAILED")
        assert "heard\nstatus 0\n" == said(place, name)


@concurrently
def test_trap_unasked(slurm, place):
    """Slurm itself sends the signal once it is asked for."""
    script = job("trap 'echo heard; kill -TERM $pid; wait' USR1\npython -u train.py & pid=$!\nwait", "--time=10")
    jobs = submitted(slurm, place, (script, mended(script, "trap-unasked")))
    begun(slurm, place, jobs)
    for each in jobs:
        end_in(slurm, each, 100)
    slurm.until(lambda: "heard" in said(place, "after"))
    slurm.until(lambda: "saved" in said(place, "after"))
    assert "heard" not in said(place, "before")
    slurm.ask("scancel", *jobs)


@concurrently
def test_no_grace(slurm, place):
    """At the time limit the program saves, and the job goes on; before, it ends for good."""
    script = job("python -u train.py >> log 2>&1", "--time=10:00:00 --requeue --open-mode=append")
    jobs = submitted(slurm, place, (script, mended(script, "no-grace")))
    for name, each in zip(("before", "after"), jobs, strict=True):
        slurm.until(lambda name=name: "begun" in said(place, name, "log"))
        end_in(slurm, each, 20)
    slurm.until(lambda: "begun 1" in said(place, "after", "log"), limit_s=180)
    assert "TIMEOUT" == slurm.wait(jobs[0], "TIMEOUT", "FAILED")["JobState"]
    assert "begun 1" not in said(place, "before", "log")
    said_after = said(place, "after", "log").splitlines()
    assert ["begun 0", "saved", "begun 1"] == [line for line in said_after if not line.startswith("holdfast")][:3]
    slurm.ask("scancel", jobs[1])


@concurrently
def test_append_missing(slurm, place):
    """What the first start said is still there after the second."""
    script = job("exec holdfast run -- python -u train.py", "--requeue")
    jobs = submitted(slurm, place, (script, mended(script, "append-missing")))
    begun(slurm, place, jobs)
    slurm.ask("scontrol", "requeue", ",".join(jobs))
    for name in ("before", "after"):
        slurm.until(lambda name=name: "begun 1" in said(place, name))
    assert [False, True] == ["begun 0" in said(place, name) for name in ("before", "after")]
    slurm.ask("scancel", *jobs)


@concurrently
def test_directive_too_late(slurm, place):
    """Slurm knows it after the move."""
    script = job("echo done\n#SBATCH --comment=late")
    jobs = submitted(slurm, place, (script, mended(script, "directive-too-late")))
    assert [None, "late"] == [slurm.show(each).get("Comment") for each in jobs]


@concurrently
def test_nobody_waits(slurm, place):
    """The program is killed when the script ends, unless it waits."""
    script = job("python -u train.py &")
    jobs = submitted(slurm, place, (script, mended(script, "nobody-waits")))
    slurm.until(lambda: "begun" in said(place, "after"))
    assert "COMPLETED" == slurm.wait(jobs[0], "COMPLETED", "FAILED")["JobState"]
    assert "finished" not in said(place, "before")
    assert "RUNNING" == slurm.show(jobs[1])["JobState"]
    (place / "fast").touch()
    slurm.wait(jobs[1], "COMPLETED")
    assert "finished" in said(place, "after")


@concurrently
def test_array_shares_output(slurm, place):
    """A file for each task."""
    script = job("echo task $SLURM_ARRAY_TASK_ID", "--array=1-2")
    jobs = submitted(slurm, place, (script, mended(script, "array-shares-output")))
    for each in jobs:
        slurm.until(lambda each=each: not slurm.ask("squeue", "--noheader", "--jobs", each))
    assert ["out.txt"] == [path.name for path in (place / "before").glob("*.txt")]
    assert {"out_1.txt", "out_2.txt"} == {path.name for path in (place / "after").glob("*.txt")}


@concurrently
def test_array_shares_run(slurm, place):
    """A run for each task."""
    script = job("exec holdfast run --run runs/x -- python -u train.py", "--array=1-2").replace("out.txt", "out_%a.txt")
    jobs = submitted(slurm, place, (script, mended(script, "array-shares-run")))
    slurm.until(lambda: all("begun" in said(place, "after", f"out_{task}.txt") for task in (1, 2)))
    slurm.until(lambda: any("another `holdfast run`" in said(place, "before", f"out_{task}.txt") for task in (1, 2)))
    slurm.ask("scancel", *jobs)


@concurrently
def test_several_steps_in_work_sh(slurm, place):
    """As the finding says, below a trap in a script of their own: what follows the program does not run too early."""
    together = job("python train.py\necho evaluated", "--time=10:00:00")
    (finding,) = (each for each in lint_script(together) if each.rule == "no-grace")
    assert "work.sh below the line: trap 'exit 75' TERM" in finding.fix
    (place / "work").mkdir()
    (place / "work/train.py").write_text(TRAIN)
    (place / "work/work.sh").write_text("trap 'exit 75' TERM\npython -u train.py\necho evaluated\n")
    number = slurm.sbatch(
        place / "work", script=job("exec holdfast run --lead 5 -- bash work.sh", "--requeue --open-mode=append")
    )
    slurm.until(lambda: "begun 0" in said(place, "work"))
    end_in(slurm, number, 20)
    slurm.until(lambda: "begun 1" in said(place, "work"), limit_s=180)
    assert "evaluated" not in said(place, "work")
    (place / "fast").touch()
    slurm.wait(number, "COMPLETED")
    assert said(place, "work").count("evaluated") == 1
