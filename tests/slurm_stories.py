"""What stories of a real Slurm share: a training that says how far it is, its interruptions, and how it has to end."""

import functools
import json
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from holdfast import Store, journal
from real_slurm import JOB
from toy import Toy, events

HOLDFAST = Path(sys.executable).parent / "holdfast"
HEAD = f"""
import os, random, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from toy import Toy, new_run
from holdfast import Every
random.seed(1)
toy = Toy()
STEPS = int(sys.argv[1]) if sys.argv[1:] else 4000  # more than three minutes, until a test makes a file `fast`
"""
TRAIN = """
with new_run("run", toy, every=Every(steps=50)) as run:
    for step in run.steps(STEPS):
        time.sleep(0.001 if os.path.exists("fast") else 0.05)
        toy.learn(step)
        if step % 20 == 19:
            print("step", step + 1, flush=True)
print("final", toy.value)
"""
STEPS = 4000


def script(place, body=TRAIN):
    (place / "train.py").write_text(HEAD + textwrap.dedent(body))


@functools.cache
def final(steps=STEPS):
    """What the uninterrupted run prints at its end."""
    state = random.getstate()
    random.seed(1)
    toy = Toy()
    for step in range(steps):
        toy.learn(step)
    random.setstate(state)
    return f"final {toy.value}\n"


def call(slurm, place, *words):
    """`holdfast WORDS` in `place`, as a user of this cluster."""
    if not (place / "train.py").exists():
        script(place)
    environment = {**slurm.environment, "PATH": f"{HOLDFAST.parent}:{os.environ['PATH']}"}
    command: list[str | Path] = [HOLDFAST, *map(str, words)]
    return subprocess.run(command, check=False, cwd=place, env=environment, capture_output=True, text=True, timeout=60)


def submit(slurm, place, *words):
    """The id of a new job by `holdfast submit`, and its output file."""
    done = call(slurm, place, "submit", "--json", "--time", "5", *words)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["job"], place / answer["output"]


def text(path):
    return path.read_text() if path.exists() else ""


def output(place, name="out.txt"):
    return text(place / name)


def running(slurm, job, place, word="step 20\n"):
    """Once its output has this word."""
    slurm.until(lambda: word in output(place))
    return job


def until_resumed(slurm, file, starts, limit_s=200):
    """Once so many starts have come far enough to have a new step behind them."""
    found = re.compile(r"(?:starts fresh|resumes at).*\n(?:.*\n)*?step")
    slurm.until(lambda: len(found.findall(text(file))) >= starts, limit_s)


def begin(slurm, place, *options, body=TRAIN, text=JOB):
    """The job of a training, once it trains."""
    script(place, body)
    return running(slurm, slurm.sbatch(place, *options, script=text), place)


def end_in(slurm, job, seconds):
    """The time limit comes so soon."""
    slurm.ask("scontrol", "update", f"JobId={job}", f"EndTime=now+{seconds}")


def without_limit(slurm, job, restarts="1"):
    """Once it has been put back into the queue so often: its next start has no time limit."""
    slurm.until(lambda: slurm.show(job)["Restarts"] == restarts, 200)
    slurm.until(lambda: slurm.ask("scontrol", "update", f"JobId={job}", "TimeLimit=UNLIMITED") == "")


def gone(slurm, job):
    """Once nothing of it waits or runs."""
    live = "PENDING,RUNNING,COMPLETING,SUSPENDED"
    slurm.until(lambda: not slurm.ask("squeue", "-h", "-j", job, "-t", live))


def preempt(slurm, node, place, seconds=3):
    """Take the node away from what runs there with less priority."""
    options = ("-p", "long", "-w", node, "-c", "4", "-o", "/dev/null")
    return slurm.ask("sbatch", "--parsable", *options, "--wrap", f"sleep {seconds}", cwd=place)


def carried(run):
    """What the run's journal says became of the job, start by start."""
    kinds = journal.AFTERWARDS
    return [
        (each["event"], each["cause"]) for log in journal.logs(run) for each in log.events if each["event"] in kinds
    ]


def goes_on_to_the_end(slurm, job, place, endings=None, known=None, *, end="COMPLETED"):
    """The end is the uninterrupted one, and of its output nothing is lost.

    `endings`, and `end` of the last one: how its starts ended, by Slurm's record; `known`: what became of the job, by
    the run's journal.
    """
    (place / "fast").touch()
    assert "0:0" == slurm.wait(job, end, limit_s=200)["ExitCode"]
    found = output(place)
    assert final() in found
    said = {int(step) for step in re.findall(r"^step (\d+)$", found, re.MULTILINE)}
    assert set(range(20, STEPS + 1, 20)) == said
    checkpoints = Store(place / "run").checkpoints()
    assert checkpoints
    assert endings in (None, slurm.endings(job)), slurm.endings(job)
    assert known in (None, carried(place / "run")), carried(place / "run")
    assert all(not list(checkpoint.problems()) for checkpoint in checkpoints)


def not_started_again(slurm, job, *states):
    """It ended so, and is as it was after twice the delay of a requeue."""
    ended = slurm.wait(job, *states)
    time.sleep(12)  # what is not to come cannot be waited for otherwise
    names = ("JobState", "Restarts")
    assert [ended[name] for name in names] == [slurm.show(job)[name] for name in names]
    return ended


def stays_ended(slurm, job, place):
    """Cancelled once and not started again; with a checkpoint of its last step."""
    not_started_again(slurm, job, "CANCELLED")
    assert "CANCELLED" == slurm.endings(job)[-1]
    stop = events(place / "run", "stop")[-1]
    assert stop["step"] == Store(place / "run").latest().step
    assert "was cancelled, and is not requeued" in output(place)
    return stop


def after_a_preemption(slurm, partition):
    """How the starts end that follow a preemption, when the second one does the work, by Slurm's record.

    Since 24.05 Slurm remembers that it sent SIGTERM at the beginning of a grace, and takes the job's next end for the
    preemption's. With PreemptMode=REQUEUE it starts the job once more.
    """
    if slurm.version < (24, 5) or partition == "preempt0":
        return ["COMPLETED"]
    return ["PREEMPTED"] if partition == "pcancel" else ["PREEMPTED", "COMPLETED"]


def preempted(slurm, place, node, partition, *options):
    """How the first start of a job ended that was preempted, and went on to its end."""
    job = begin(slurm, place, "-p", partition, "-w", node, "-c", "4", *options)
    preempt(slurm, node, place)
    slurm.until(lambda: slurm.show(job)["Restarts"] == "1")
    after = after_a_preemption(slurm, partition)
    goes_on_to_the_end(slurm, job, place, end=after[-1])
    assert str(len(after)) == slurm.show(job)["Restarts"]
    endings = slurm.endings(job)
    assert after == endings[-len(after) :]
    return endings[: -len(after)]


def told(place, *kinds):
    """Lines of the supervisor's journal, of these kinds."""
    return [event for event in journal.read(place / "place" / "supervisor.jsonl") if event["event"] in kinds]


SUPERVISED = f"{JOB.partition('exec ')[0]}exec {sys.executable} -m holdfast run --run place"
# It counts its starts, saves when it is told to, and is done in the third.
COUNTS = """
n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n
trap 'echo saved $n; exit 75' TERM USR1
echo begun $n
for i in $(seq 1200); do [ $n -ge 2 ] && exit 0; sleep 0.1; done
"""


def supervised(place, *, options="", command="bash command.sh", text=COUNTS):
    """A batch script that runs it under `holdfast run`."""
    (place / "command.sh").write_text(text)
    return f"{SUPERVISED} {options} -- {command}\n"
