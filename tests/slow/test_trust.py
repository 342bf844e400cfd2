"""The scorecard of checkpoint libraries: its planted bad ones fail as planted, and one seed says the same twice."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from needed import needs

TRUST = Path(__file__).parents[2] / "benchmarks/trust"
sys.path.append(str(TRUST))

import page  # noqa: E402
from trials import CRASHED, LOST, OLDER, REFUSED, RIGHT, UNSTRUCK, WRONG, judge  # noqa: E402

PLANTED = {"no_fsync": "power loss", "no_rename": "killed in a save", "no_check": "flipped bit"}


def run(place, *words):
    place.mkdir()
    command = [sys.executable, str(TRUST / "run.py"), "--out", str(place), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    trials = [json.loads(line) for line in (place / "trust.jsonl").read_text().splitlines()]
    return ended, trials


@needs("strace")
def test_planted_bad_libraries_fail_in_the_way_that_was_planted_and_twice_the_same(tmp_path):
    """The other two of each fault survive it: a fault strikes nothing but what it is for."""
    words = [each for name in PLANTED for each in ("--only", name)]
    words += [each for fault in PLANTED.values() for each in ("--fault", fault)]
    ended, trials = run(tmp_path / "once", *words, "--trials", "8", "--seed", "3")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(": found: ") == 3
    found = {
        (name, fault): {each["verdict"] for each in trials if (each["library"], each["fault"]) == (name, fault)}
        - {UNSTRUCK}
        for name in PLANTED
        for fault in PLANTED.values()
    }
    assert found["no_check", "flipped bit"] == {WRONG}
    assert found["no_fsync", "flipped bit"] == found["no_rename", "flipped bit"] == {REFUSED}
    assert found["no_fsync", "killed in a save"] == found["no_check", "killed in a save"] == {RIGHT}
    assert found["no_check", "power loss"] == {RIGHT}
    assert found["no_rename", "killed in a save"] & {REFUSED, LOST}
    again = run(tmp_path / "twice", *words, "--trials", "8", "--seed", "3")[1]
    assert [each["seed"] for each in again] == [each["seed"] for each in trials]
    struck = [pair for pair in zip(trials, again, strict=True) if UNSTRUCK not in {each["verdict"] for each in pair}]
    at_rest = [[each["verdict"] for each in pair] for pair in struck if pair[0]["fault"] == "flipped bit"]
    assert len(at_rest) == 24
    assert all(one == other for one, other in at_rest)


@pytest.mark.parametrize(
    ("answer", "durable", "verdict"),
    [
        ({"step": 3, "is": [3, "a"]}, 3, RIGHT),
        ({"step": 4, "is": [4, "b"]}, 3, RIGHT),
        ({"step": 2, "is": [2, "a"]}, 3, OLDER),
        ({"step": 3, "is": [2, "a"]}, 3, WRONG),
        ({"step": 3, "is": None}, 3, WRONG),
        ({"step": None}, 0, RIGHT),
        ({"step": None}, 1, LOST),
        ({"error": "ValueError", "text": "cannot read last.pt: cut"}, 1, REFUSED),
        ({"error": "EOFError", "text": ""}, 1, CRASHED),
        ({"error": "died", "text": "exit -11 last.pt"}, 1, CRASHED),
    ],
)
def test_a_verdict_is_of_what_came_back_and_what_was_reported_as_saved(answer, durable, verdict, tmp_path):
    (tmp_path / "last.pt").touch()
    assert judge(answer, tmp_path, durable).verdict == verdict


def test_a_library_is_one_file_of_at_most_sixty_lines():
    for path in (TRUST / "libraries").glob("*.py"):
        assert len([line for line in path.read_text().splitlines() if line.strip()]) <= 60, path.name


def test_the_page_and_its_picture_say_what_the_kept_trials_found(tmp_path):
    """Every library under every fault, as often as the page says; and the page is written from nothing else."""
    whole, trials = page.kept()
    page.write(whole, trials, tmp_path / "trust.md", tmp_path / "trust.svg")
    assert (tmp_path / "trust.md").read_text() == page.PAGE.read_text()
    assert (tmp_path / "trust.svg").read_text() == page.PICTURE.read_text()
    assert not page.unfailed(whole["libraries"], trials)
    count = Counter((each["library"], each["fault"]) for each in trials)
    wanted = {(name, fault.name): 100 if fault.at_rest else 10 for name in whole["libraries"] for fault in page.FAULTS}
    assert count == wanted
    assert {path.stem for path in TRUST.glob("*/*.py")} == {*whole["libraries"]}
