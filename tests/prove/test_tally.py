"""The plugin of tests/tally.py, on a small project: what is counted, and what a failure leaves."""

import json
import subprocess
import sys
from pathlib import Path

import tally

TESTS = Path(tally.__file__).parent
COUNTS = """
import pytest
@pytest.mark.parametrize("n", [2, 3])
def test_holds(tally, n): tally("disk full", tried=n, observed=n - 1)
def test_breaks(tally):
    tally("bit flips", tried=5, survived=4)
    assert False
def test_breaks_before(tally): assert False
def test_is_silent(): pass
"""


def counted(place: Path, text: str, *options: str) -> tuple[dict, str]:
    (place / "conftest.py").write_text(f"import sys\nsys.path.append({str(TESTS)!r})\npytest_plugins = ['tally']\n")
    (place / "test_it.py").write_text(text)
    kept = place / "counts.json"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--tally={kept}", *options]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    return json.loads(kept.read_text()), done.stdout


def test_counts_are_summed_and_a_failure_is_kept(tmp_path):
    """By fault, from all processes that share the tests; a test that failed is named, whatever it had counted."""
    found, output = counted(tmp_path, COUNTS, "-n", "2")
    assert tally.sums(found, {}) == {"disk full": (5, 3, 3), "bit flips": (5, 5, 4)}
    failed = [name for name, law in found.items() if law["failed"]]
    assert failed == ["test_it.py::test_breaks", "test_it.py::test_breaks_before"]
    assert "test_it.py::test_is_silent" not in found
    assert "       5        3        3  disk full" in output
    text = tally.table(found, {"kinds": {"kills": {"cases": 4, "untried": ["late"], "failed": []}}})
    assert "| disk full | 5 | 3 | 3 | |" in text
    assert "| bit flips | 5 | 5 | 4 | **not all** |" in text
    assert "| soak: kills | 5 | 4 | 4 | |" in text
    assert "tests that failed: test_it.py::test_breaks, test_it.py::test_breaks_before." in text


def test_some_tests_run_again_replace_their_own_counts_only(tmp_path):
    """A law that is mended and run alone is counted once."""
    counted(tmp_path, COUNTS)
    found, _ = counted(tmp_path, COUNTS.replace("    assert False\n", ""), "-k", "test_breaks and not before")
    assert [name for name, law in found.items() if law["failed"]] == ["test_it.py::test_breaks_before"]
    assert tally.sums(found, {}) == {"disk full": (5, 3, 3), "bit flips": (5, 5, 4)}
    found, _ = counted(tmp_path, COUNTS.replace("assert False", "pass"), "-k", "before")
    assert [name for name, law in found.items() if law["failed"]] == []
    assert len(found) == 3


def test_nothing_counted_never_holds():
    """Neither a fault that did not happen nor one that was not survived is a proof."""
    counts = [(9, 0, 0), (9, 9, 8), (0, 0, 0), (9, 8, 8)]
    assert [tally.Count(*each).holds for each in counts] == [False, False, False, True]
