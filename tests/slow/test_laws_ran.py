"""The plugin of tests/laws_ran.py, on a small project: a run of a folder fails when a law did not run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PAGE = """
| what | survives | proved by |
|---|---|---|
| a | b | `test_one.py::test_law`, `make demo` |
| c | d | `test_one.py::test_inside` |
"""
HOLDS = """
import pytest
def test_law(): pass
class TestIt:
    @pytest.mark.parametrize("n", ["x", "a::b"])
    def test_inside(self, n): pass
"""
SKIPS = HOLDS.replace("pass\n", "pytest.skip('no tool')\n", 1)
SKIPS_ONE = HOLDS.replace("n): pass", "n): n == 'x' or pytest.skip('no tool')")
SKIPS_ALL = "import pytest\npytest.importorskip('no_such_module')\n" + HOLDS
FAILS = HOLDS.replace("pass\n", "assert False\n", 1)
FORGETS = HOLDS + "del test_law\n"
LAW, INSIDE = "NOT PROVED test_one.py::test_law", "NOT PROVED test_one.py::test_inside"


def answer(place: Path, text: str, *options: str) -> tuple[int, str]:
    """Exit status and output of pytest over a small project of which that is the only test file."""
    (place / "docs").mkdir(exist_ok=True)
    (place / "tests" / "fast").mkdir(parents=True, exist_ok=True)
    (place / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '-p no:cacheprovider'\n")
    (place / "docs" / "evidence.md").write_text(PAGE)
    (place / "tests" / "conftest.py").write_text(
        f"import sys\nsys.path.append({str(ROOT / 'tests')!r})\npytest_plugins = ['sample', 'laws_ran']\n"
    )
    (place / "tests" / "fast" / "test_one.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", *options]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, env={"PYTHONPATH": ""})
    return done.returncode, done.stdout + done.stderr


def says(place, text, *options):
    """The exit status, and of which laws it says that they were not proved."""
    code, output = answer(place, text, *options)
    assert ("laws of docs/evidence.md ran and passed" in output) == ("-k" not in options)
    return code, [law for law in (LAW, INSIDE) if law in output]


def test_a_law_that_did_not_run_fails_the_run_of_its_folder(tmp_path):
    """Skipped where every law must run, forgotten, or skipped with its whole file: the run fails and names it."""
    assert says(tmp_path, HOLDS, "tests/fast", "--every-law") == (0, [])
    assert says(tmp_path, SKIPS, "tests/fast", "--every-law") == (1, [LAW])
    assert says(tmp_path, FORGETS, "tests/fast") == (1, [LAW])
    assert says(tmp_path, SKIPS, "tests/fast") == (
        0,
        [LAW],
    )  # a bare machine lacks a tool: it is told and is no failure


def test_the_same_in_other_ways_to_run(tmp_path):
    """In workers of pytest-xdist, from the root, in part skipped, and with a failure; a selection proves nothing."""
    assert says(tmp_path, SKIPS, "--every-law", "-n", "1") == (1, [LAW])
    assert says(tmp_path, HOLDS, "tests/fast", "--every-law", "-n", "2") == (0, [])
    assert says(tmp_path, SKIPS_ONE, "tests", "--every-law") == (1, [INSIDE])
    code, output = answer(tmp_path, SKIPS_ALL, "--every-law")
    assert (code != 0, LAW in output, INSIDE in output) == (True, True, True)
    assert says(tmp_path, FAILS, "tests/fast") == (1, [LAW])
    assert says(tmp_path, SKIPS, "tests/fast", "-k", "law")[0] == 0
