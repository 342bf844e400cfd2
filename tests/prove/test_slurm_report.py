"""`holdfast report` of the digits example in one job of a real Slurm, interrupted nine times.

It leaves its journals and their report in build/golden-report, and its page in build/digits.html. To make them the
golden example, which tests/fast/test_report_golden.py reads: `cp -rT build/golden-report tests/golden/report`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import journal, owner
from real_slurm import concurrently
from slurm_digits import EXAMPLE, PACED, Told, metrics_of
from slurm_stories import call, submit

OUT = Path(__file__).parents[2] / "build" / "golden-report"
PAGE = OUT.with_name("digits.html")
STEP_S = 0.5
FAULTS = """
def struck(self, closure=None):
    if os.path.exists("error"):
        os.remove("error")
        raise ValueError("the loss is not finite")
    if os.path.exists("hang"):
        os.remove("hang")
        time.sleep(3600)
    return paced(self, closure)
torch.optim.AdamW.step = struck
if __name__ ==
"""
KILLED = "killed by SIGKILL"
CAUSES = [KILLED, "preempted", "error", KILLED, "time limit", "hang", "node lost", "preempted", KILLED]
NEUTRAL = "/work/digits"  # where the golden example says that it ran


class Struck(Told):
    """The same job; what ends a start within the allocation is added."""

    starts = 1

    def until_it_did(self, steps: int) -> None:
        """The present start has done so many steps of its own, and is interrupted next."""
        run = self.place / "runs" / "digits"
        self.slurm.until(lambda: len(metrics_of(run, self.starts)) >= steps)
        self.starts += 1

    def killed(self) -> None:
        (log,) = journal.logs(self.place / "runs" / "digits")[-1:]
        os.kill(log.owner["pid"], signal.SIGKILL)

    def struck(self, fault: str) -> None:
        (self.place / fault).touch()


@pytest.mark.timeout(1200)
@concurrently
def test_the_report_tells_nine_interruptions_and_their_causes(slurm, place):
    """Two preemptions, a lost node, a time limit, a hang, an error, three kills; the wall time is Slurm's own."""
    script = PACED.replace("else 1)", f"else {STEP_S})").replace("\nif __name__ ==", FAULTS.rstrip("\n"))
    (place / "train.py").write_text(script)
    options = ["--partition=preempt", "--nodelist=n22", "--cpus-per-task=4", "--time=UNLIMITED", "--retries", 3]
    hangs = ["--lead", 2, "--on-hang", "restart", "--hang-after", 20, "--grace", 8]
    job, _ = submit(
        slurm, place, "--run", ".holdfast/digits-1", *options, *hangs, "--", sys.executable, "-u", "train.py"
    )
    story = Struck(slurm, place, "n22", job)
    story.until_it_did(38)
    story.killed()
    story.until_it_did(20)
    story.preempted(then="long")
    story.until_it_did(30)
    story.struck("error")
    story.until_it_did(25)
    story.killed()
    story.until_it_did(15)
    story.timed_out()
    story.until_it_did(20)
    story.struck("hang")
    story.until_it_did(22)
    story.node_lost(then="preempt", elsewhere="n23")
    story.until_it_did(20)
    story.preempted(then="long")
    story.until_it_did(25)
    story.killed()
    slurm.wait(job, "COMPLETED", limit_s=200)
    told = json.loads(call(slurm, place, "report", ".holdfast/digits-1", "--json").stdout)
    neutral(place)
    assert ("done", CAUSES) == (told["verdict"], [each["cause"] for each in told["interruptions"]])


def neutral(place: Path) -> None:
    """Copy the journals without names of this machine and of its folders, and write their report and page.

    Each host is called as Slurm calls the node: all nodes of this cluster are one machine.
    """
    shutil.rmtree(OUT, ignore_errors=True)
    here, node = owner.describe_this_process(), ""
    nodes: dict[str, str] = {}
    names = {json.dumps(here[name]): json.dumps(name) for name in ("machine", "hardware", "boot", "user")}
    paths = {str(EXAMPLE.parents[2]): NEUTRAL, str(place): str(OUT)}
    kept = [".holdfast/digits-1/*.jsonl", ".holdfast/digits-1/*-here.json", "runs/digits/run.json"]
    kept += ["runs/digits/*/attempt-*.jsonl", "runs/digits/attempts/*/*.jsonl"]
    for file in [file for glob in kept for file in sorted(place.glob(glob))]:  # the supervisor's journal comes first
        lines = replaced(file.read_text(), paths | names).splitlines(keepends=True)
        for at, line in enumerate(lines):
            if restart := re.search(r'"restart_count": ?(\d+)', line):
                told = re.search(r'"node":"(\w+)"', line)
                node = nodes.setdefault(restart[1], str(told[1]) if told else node)
            lines[at] = line.replace(json.dumps(here["host"]), json.dumps(node))
        target = OUT / file.relative_to(place)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(lines))
    report = [sys.executable, "-m", "holdfast", "report", str(OUT / "runs/digits"), "--json"]
    (OUT / "report.json").write_bytes(subprocess.run(report, check=True, capture_output=True).stdout)
    checkpoints = OUT / "runs/digits/checkpoints"
    checkpoints.symlink_to(place / "runs/digits/checkpoints")  # the page shows them; the golden example has none
    subprocess.run([*report, "--html", PAGE], check=True, capture_output=True)
    checkpoints.unlink()
    for file in [PAGE, *OUT.rglob("*.*")]:
        if file.is_file():
            file.write_text(file.read_text().replace(str(OUT), NEUTRAL))


def replaced(text: str, names: dict[str, str]) -> str:
    for found, name in names.items():
        text = text.replace(found, name)
    return text
