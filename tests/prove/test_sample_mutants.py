"""tools/sample_mutants.py calls a mutant killed when a test fails by name, and never for any other reason."""

import json
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "tools"

SUMS = """\
import os

def noticed(x):
    x.clear()

def unnoticed(x):
    x.clear()

def crashing(x):
    if x:
        os._exit(3)

def unreached(x):
    x.clear()

def rarely(x):
    x.clear()
"""
TESTS = """\
import pathlib
from holdfast import sums

def test_noticed():
    x = [1]
    sums.noticed(x)
    assert [] == x
def test_unnoticed(): sums.unnoticed([1])
def test_crashing(): sums.crashing([])
def test_rarely():
    mark = pathlib.Path(__file__).with_name("seen")
    times = len(mark.read_text()) + 1 if mark.exists() else 1
    mark.write_text("x" * times)
    sums.rarely([1])
    assert 2 != times
"""


def test_each_outcome_is_told_from_the_others(tmp_path):
    """A crash is no verdict; a test that fails once, here the first time after the control, kills nothing."""
    package, work = tmp_path / "src" / "holdfast", tmp_path / "work"
    for folder in (package, work, tmp_path / "tests"):
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "sums.py").write_text(SUMS)
    (tmp_path / "tests" / "test_sums.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from hypothesis import settings\nsettings.register_profile('quick')\n")
    names = ("noticed", "unnoticed", "crashing", "rarely")
    tests = [
        {"test": f"tests/test_sums.py::test_{name}", "cpu_s": 0.01, "wall_s": 0.01, "outcome": "passed"}
        for name in names
    ]
    lines = {"4": [0], "7": [1], "10": [2], "17": [3]}
    (work / "reach.json").write_text(json.dumps({"tests": tests, "lines": {"sums.py": lines}}))
    command = [sys.executable, TOOLS / "sample_mutants.py", "run", tmp_path, work, "--heavy", "--cap", "30"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == said.returncode, said.stderr
    results = [json.loads(line) for line in (work / "mutants.jsonl").read_text().splitlines()]
    found = {(each["key"][1], each["key"][2]): each["outcome"] for each in results}
    assert SUMS == (work / "copy" / "src" / "holdfast" / "sums.py").read_text()
    assert found == {
        ("noticed", "drop"): "killed",
        ("unnoticed", "drop"): "survived",
        ("crashing", "negate"): "no verdict",
        ("crashing", "drop"): "unreached",
        ("crashing", "number"): "unreached",
        ("unreached", "drop"): "unreached",
        ("rarely", "drop"): "survived",
    }
    assert ["tests/test_sums.py::test_rarely"] == next(each["unsure"] for each in results if each["key"][1] == "rarely")
    killed = [each for each in results if each["outcome"] == "killed"]
    assert {"tests/test_sums.py::test_noticed"} == {each["test"] for each in killed}
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "" == again.stdout, "what has a result is not asked again"
