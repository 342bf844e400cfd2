"""The built package: its source distribution runs its own tests, and what its demo prints leads on."""

import re
import sys
import tarfile
from pathlib import Path

import pytest
from test_wheel import ROOT, built, done, python  # noqa: F401  fixtures


def test_what_was_unpacked_runs_its_own_tests(built, tmp_path):  # noqa: F811
    """With nothing of this checkout: golden runs, pages, workflows and the command are there."""
    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    laws = [f"tests/fast/test_{name}.py" for name in ("cli", "docs", "golden_run", "tools", "workflows")]
    few = "help_and_json or version or golden or names or targets or weighed or kind"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *laws, "-k", few]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(root / "src"))
        told = done(*command, cwd=root)
        where = done(sys.executable, "-c", "import holdfast; print(holdfast.__file__)", cwd=root)
    assert str(root) in where
    assert re.search(r"^[1-9]\d passed, \d+ deselected", told, re.MULTILINE), told


def test_the_demo_tells_what_it_has_shown_and_where_to_read_on(python, tmp_path):  # noqa: F811
    """The last line is the verdict; the files and commands that it names exist."""
    told = done(python.with_name("holdfast"), "demo", cwd=tmp_path).splitlines()
    assert told[-1].startswith("identical: ")
    facts = dict(line.split(": ", 1) for line in told if ": " in line)
    assert "2 times by SIGKILL" == facts["killed"]
    assert Path(facts["the script"]).is_file()
    assert {"docs/tutorial.md", "docs/drill.md"} <= {*facts["read on"].split()}
    assert [] == [name for name in ("docs/tutorial.md", "docs/drill.md") if not (ROOT / name).exists()]
