"""The report of a real run: the digits example in a job of a real Slurm, interrupted nine times.

`tests/prove/test_slurm_report.py` makes tests/golden/report anew.
"""

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest

from stores import invoke

GOLDEN = Path(__file__).parents[1] / "golden/report"
NEUTRAL = "/work/digits"  # where its journals say that they lie
REPORT = json.loads((GOLDEN / "report.json").read_text())
CAUSES = ["killed by SIGKILL", "preempted", "error", "killed by SIGKILL", "time limit", "hang", "node lost"]
CAUSES += ["preempted", "killed by SIGKILL"]
NEAR_S = 0.3  # half a step


@pytest.mark.parametrize("folder", ["runs/digits", ".holdfast/digits-1"])
def test_the_report_is_what_it_was(tmp_path, folder):
    """The same JSON from the run's directory and from its supervisor's."""
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    for file in [each for each in tmp_path.rglob("*.json*") if each.is_file()]:
        file.write_text(file.read_text().replace(NEUTRAL, str(tmp_path)))
    found = json.loads(invoke("report", tmp_path / folder, "--json").stdout.replace(str(tmp_path), NEUTRAL))
    same = {"run", "began", "wall_s", "seconds", "attempts", "interruptions", "metrics", "warnings"}
    same |= {"lost_s", "lost", "advice", "best"}
    assert {name: REPORT[name] for name in same} == {name: found[name] for name in same}


def test_a_reader_of_the_journals_alone_gets_his_answers(tmp_path):
    """What was lost, what to change, whether it is one curve, the best, and why no checkpoint is there."""
    page = tmp_path / "page.html"
    text = invoke("report", GOLDEN / "runs/digits", "--html", page).stdout
    for told in (
        (
            "It finished at step 360: 9 interruptions (5 killed, 3 stopped by SIGUSR1, 1 error) lost 4.4 min, "
            "the first start not counted: 2.1 min of starts, 109 s idle, 19 s of training done again, 5 s unknown"
        ),
        " SIGUSR1 is a scheduler's warning before a time limit or a preemption.",
        "ttempt 3 ended with ValueError: the loss is not finite, raised by the script",
        "went into the starts of 10 attempts, 14 s each on average",
        (
            "One curve: all values logged again (36) are equal to the first ones. No logged value is NaN or infinite. "
            "Attempts 3, 6, 9: no step was logged twice. Changed between attempts: host, git.commit (see What it ran)."
        ),
        "est: val_acc 0.96667 at step 240, the largest by keep=Best(...)",
    ):
        assert told in text
        assert told in page.read_text()
    assert "  # its checkpoints and metrics" in text
    for told in (
        "The folder holds no checkpoints: only the journal is here; the last one saved was step 360.",
        "the loop waited 0.81 s. Of it 0.44 s is `save` above; the rest is in `stop`, for last saves, and in `redone`.",
        "nothing: only 0.62 s of training was lost",
    ):
        assert re.sub("`(.*?)`", r"<code>\1</code>", told) in page.read_text()
    assert "Next: " not in page.read_text(), "a page of a finished run is read elsewhere"


def test_its_numbers_are_those_of_a_sum_of_our_own():
    """Wall, training and redone seconds and lost steps of each start, from the lines themselves."""
    starts, wall_s = independent()
    assert REPORT["wall_s"] == pytest.approx(wall_s, abs=0.01)
    assert sum(REPORT["seconds"].values()) == pytest.approx(wall_s, rel=1e-3)
    assert REPORT["seconds"]["unknown"] <= 0.02 * wall_s
    for (trained_s, redone_s, _), told in zip(starts, REPORT["attempts"], strict=True):
        assert told["seconds"]["training"] == pytest.approx(trained_s, abs=NEAR_S)
        assert told["seconds"].get("redone", 0.0) == pytest.approx(redone_s, abs=NEAR_S)
    for at, name in enumerate(("training", "redone")):
        assert REPORT["seconds"][name] == pytest.approx(sum(each[at] for each in starts), abs=0.01 * wall_s)
    told = [(each["cause"], each["step"] - each["resumed_step"]) for each in REPORT["interruptions"]]
    assert [*zip(CAUSES, (lost for _, _, lost in starts[:-1]), strict=True)] == told
    assert [7, 0, 8, 5, 0, 5, 1, 0, 10] == [lost for _, lost in told]


def independent():
    """Of each start the seconds of training and of training done again, and the lost steps; and the wall seconds."""
    run, told = GOLDEN / "runs/digits", lines(GOLDEN / ".holdfast/digits-1/supervisor.jsonl")
    begun, ended = ([each for each in told if each["event"] == kind] for kind in ("start", "exit"))
    killed = [each["time"] for each in ended if each["cause"] == "killed by SIGKILL"]
    journals = [lines(run / f"history/attempt-{at}.jsonl") for at in range(1, 10)]
    journals.append(lines(run / "attempts/10/attempt-10.jsonl"))
    found = []
    for ours, later in itertools.zip_longest(journals, journals[1:], fillvalue=()):
        at_s = {each["step"]: each["time"] for each in ours if each["event"] == "metrics" and each["phase"] == "step"}
        resumed = next((each["step"] for each in later if each["event"] == "restored"), max(at_s))
        kept = [time_s for step, time_s in at_s.items() if step <= resumed]
        waits_s = sum(each["stall_s"] for each in ours if each["event"] == "saved" and each["reason"] == "due")
        step_s = (max(kept) - min(kept)) / (len(kept) - 1)
        until_s = next((each for each in killed if 0 < each - max(at_s.values()) < 5), max(at_s.values()))
        found.append((max(kept) - min(kept) + step_s - waits_s, until_s - max(kept), max(at_s) - resumed))
    return found, begun[-1]["time"] + ended[-1]["took_s"] - begun[0]["time"]


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines() if line]
