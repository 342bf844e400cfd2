"""The built package: what is in it, and that it works where nothing else of the repository is."""

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import holdfast
from holdfast.drill.plan import DAMAGE

ROOT = Path(__file__).parents[2]
VERSION = holdfast.__version__
MADE = {"__pycache__", ".hypothesis"}  # what tests leave
SCRIPT = """
import signal, sys, holdfast
state = {"seen": [], "sums": {"total": 0.0}}
with holdfast.Run("runs/x", state, every=None) as run:
    for step in run.steps(10):
        state["seen"].append(step)
        state["sums"]["total"] += 0.1 * step
        if step == 4 and len(sys.argv) > 1:
            signal.raise_signal(signal.SIGTERM)
print(holdfast.__file__, state)
"""


def done(*words, cwd, code=0):
    """Run a command that must end with `code`; its standard output."""
    ended = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == code, (words, ended.stdout, ended.stderr)
    return ended.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    done(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder / f"holdfast-{VERSION}-py3-none-any.whl", folder / f"holdfast-{VERSION}.tar.gz"


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    """An environment of its own with the wheel in it; it finds the dependencies, and no other Holdfast, here."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    candidates = [sys.executable, *filter(None, map(shutil.which, ("python3.11", "python3")))]
    pips = [
        each for each in candidates if subprocess.run([each, "-m", "pip", "--version"], check=False).returncode == 0
    ]
    assert pips, "pip is what CONTRIBUTING.md asks for"
    python = home / "bin/python"
    done(pips[0], "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", built[0], cwd=home)
    site = Path(done(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    # no dependency yet: nothing of the repository shines through
    done(python, "-c", "from holdfast import Run", cwd=home, code=1)
    dependencies = {sysconfig.get_path("purelib"), str(Path(pytest.__file__).parents[1])}
    (site / "dependencies.pth").write_text("\n".join(dependencies))
    return python


def test_the_wheel_holds_the_package_and_nothing_else(built):
    """With its types and its licence; without tests, documents, examples and benchmarks."""
    names = zipfile.ZipFile(built[0]).namelist()
    assert {"holdfast/py.typed", "holdfast/__init__.py", "holdfast/cli/__init__.py"} <= {*names}
    assert {name.split("/")[0] for name in names} == {"holdfast", f"holdfast-{VERSION}.dist-info"}
    assert any(name.endswith("/LICENSE") for name in names)
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/holdfast").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == source


def test_the_source_distribution_holds_what_the_project_needs(built):
    """All files of the project, without links to directories and without what is made of them."""
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        *("pyproject.toml", "mkdocs.yml", "Makefile", "requirements.lock", "LICENSE", ".gitignore", "CITATION.cff"),
        *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    }
    for folder in ("src", "tests", "tools", "examples", "docs", "changelog", ".ci", ".github"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and MADE.isdisjoint(path.parts)]
        assert files
        needed |= {str(path.relative_to(ROOT)) for path in files}
    assert set() == needed - names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "site/"))]


def test_the_installed_wheel_saves_and_resumes(python, tmp_path):
    """Its command tells the version; a run that is told to stop goes on to the same state as one that is not."""
    command = python.with_name("holdfast")
    assert done(command, "--version", cwd=tmp_path).strip() == f"holdfast {VERSION}"
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    whole = done(python, "../script.py", cwd=tmp_path / "whole")
    assert str(python.parents[1]) in whole
    done(python, "../script.py", "stop", cwd=tmp_path / "stopped", code=75)
    assert "step-000000005" in done(command, "ls", "runs/x", cwd=tmp_path / "stopped")
    assert done(python, "../script.py", cwd=tmp_path / "stopped") == whole
    done(command, "verify", "runs/x", cwd=tmp_path / "stopped")


CORE = ("click", "msgspec", "rich", "tenacity", "xxhash", "markdown_it", "mdurl", "pygments")


def test_the_demo_needs_the_wheel_and_numpy_and_nothing_else(python, tmp_path):
    """It kills twice, damages twice, sets both aside, and ends with the bits of the undisturbed run. Without NumPy it
    says what to install. The directory in which it is called stays empty.
    """
    site = Path(done(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    dependencies, kept, empty = site / "dependencies.pth", tmp_path / "kept", tmp_path / "empty"
    found, few = dependencies.read_text(), tmp_path / "few"
    few.mkdir()
    empty.mkdir()

    def give(*names):
        for home in map(Path, found.splitlines()):
            for each in home.iterdir():
                if each.name.split(".")[0] in names and not (few / each.name).exists():
                    (few / each.name).symlink_to(each)

    give(*CORE)
    dependencies.write_text(str(few))
    try:
        command = [python.with_name("holdfast"), "demo", "--keep", kept, "--json"]
        lacking = subprocess.run([*map(str, command)], cwd=empty, capture_output=True, text=True, check=False)
        error = json.loads(lacking.stdout)["error"]
        assert (2, "UsageError") == (lacking.returncode, error["kind"])
        assert "holdfast: the demo trains with NumPy: pip install numpy\n" == lacking.stderr
        give("numpy")
        report = json.loads(done(*command, cwd=empty))
    finally:
        dependencies.write_text(found)
    assert ("identical", 2, []) == (report["verdict"], report["kills_proven"], report["final_differences"])
    killed, again, last = report["attempts"]
    assert ["KILL", "KILL", None] == [each["signal"] for each in report["attempts"]]
    assert "flipped" in killed["damage"]
    assert len(DAMAGE) == sum(each["damage"] is not None for each in report["attempts"])
    for damaged, after in ((killed, again), (again, last)):
        assert [damaged["damage"].partition(":")[0]] == after["quarantined"]
    assert [] == [*empty.iterdir()]
    assert "step-000000100" in done(command[0], "ls", kept / "killed", cwd=empty)
