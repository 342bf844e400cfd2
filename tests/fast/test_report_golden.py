"""The report of a real run: the digits example in a job of a real Slurm, interrupted nine times.

`tests/prove/test_slurm_report.py` makes tests/golden/report anew.
"""

import itertools
import json
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
    assert {name: REPORT[name] for name in same} == {name: found[name] for name in same}


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
