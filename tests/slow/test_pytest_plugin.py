"""The pytest plug-in, in a pytest of its own: what it runs, skips, reports and keeps."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from test_code_scanning import KEPT, LEFT_OUT

TESTS = """
import pytest

def test_right(drill):
    found = drill("python", "right.py", kills=1, budget_s=300)
    found.identical()
    assert found.report.kills_proven == 1

@pytest.mark.drill(kills=1)
@pytest.mark.parametrize("signal", ["KILL", "TERM"])
def test_forgotten(drill, signal):
    drill("python", "forgets.py", signals=[signal]).identical()

def test_that_looks_at_nothing(drill):
    drill("python", "forgets.py", kills=1)

def test_without_a_drill():
    pass

class TestOfOthers:
    @pytest.fixture
    def drill(self):
        return "a tool"

    def test_with_a_fixture_of_that_name(self, drill):
        assert drill == "a tool"
"""


def pytest_in(place, *words):
    """Run pytest there as a user would, with the interpreter's own plug-ins."""
    python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "--basetemp", str(place / "tmp"), "-p", "no:cacheprovider", *words]
    return subprocess.run(
        command, cwd=place, env=clean | python, capture_output=True, text=True, timeout=300, check=False
    )


def prepared(place):
    (place / "forgets.py").write_text(LEFT_OUT)
    (place / "right.py").write_text(KEPT)
    (place / "test_them.py").write_text(TESTS)
    (place / "pytest.ini").write_text("[pytest]\n")


def test_drills_run_beside_each_other_and_their_verdicts_are_in_the_junit_report(tmp_path):
    """What differs fails with what `holdfast drill` prints; its runs and their page are kept, the others are not."""
    prepared(tmp_path)
    ended = pytest_in(
        tmp_path, "--holdfast-drill", "-n", "2", "--junit-xml", "report.xml", "--strict-markers", "-W", "error"
    )
    assert "2 failed, 4 passed, 1 error" in ended.stdout, ended.stdout + ended.stderr
    assert "run.vars.total" in ended.stdout
    cases = {
        case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")}
        for case in ET.parse(tmp_path / "report.xml").iter("testcase")
    }
    assert cases["test_right"] == {
        "holdfast_verdict": "identical",
        "holdfast_cause": "",
        "holdfast_resumed": "1",
    }
    for name in ("test_forgotten[KILL]", "test_forgotten[TERM]"):
        assert cases[name]["holdfast_verdict"] == "different"
        assert cases[name]["holdfast_cause"]
    kept = [path.relative_to(tmp_path).parts for path in tmp_path.glob("tmp/*/*_0/*/report.html")]
    assert len(kept) == 2
    assert all("forgotten" in parts[2] for parts in kept)


def test_drills_are_skipped_unless_they_are_asked_for(tmp_path):
    prepared(tmp_path)
    ended = pytest_in(tmp_path, "-rs")
    assert "2 passed, 4 skipped" in ended.stdout, ended.stdout + ended.stderr
    assert "a drill: give --holdfast-drill" in ended.stdout
