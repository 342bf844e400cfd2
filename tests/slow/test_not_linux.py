"""Without what only Linux has: every module is imported, a run saves and resumes, and the commands look at it.

This is no proof for macOS. It keeps calls of Linux out of where they are not needed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import not_linux

TESTS = Path(not_linux.__file__).parent
HEAD = "import sys, not_linux; not_linux.begin()\n"

# Other packages are imported before: what they do without /proc is not our matter.
IMPORTS = """
import importlib
from pathlib import Path
for name in ("cryptography", "jax", "libcst", "msgspec", "numpy", "paramiko", "PIL", "s3fs", "torch", "xxhash"):
    importlib.import_module(name)
import not_linux
not_linux.begin()
import holdfast
root = Path(holdfast.__file__).parent
for path in sorted(root.rglob("*.py")):
    name = ".".join(("holdfast", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
    if path.name not in ("__main__.py", "sitecustomize.py"):  # they act
        try:
            importlib.import_module(name)
        except (ImportError, holdfast.HoldfastError) as error:  # a framework is not installed
            print("lacks", name, str(error).replace("\\n", " "))
        else:
            print("imported", name)
"""

RUN = """
import numpy
from holdfast import Every, Last, Run
state = {"w": numpy.zeros((600, 600)), "sum": {"total": 0}}  # more than a huge page, and a big file
with Run("run", state, every=Every(steps=2), keep=Last(3)) as run:
    for step in run.steps(int(sys.argv[1])):
        state["w"] += step
        state["sum"]["total"] += step
print(state["w"][0, 0], state["sum"])
"""

COMMANDS = """
from holdfast.cli import commands
commands.main(sys.argv[1:])
"""


def ended(script, *words, cwd, code=0):
    """The standard output of a process that ends with `code`. It finds no scheduler."""
    environment = {**os.environ, "PATH": str(cwd), "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == code, (words, done.stdout[-500:], done.stderr[-2000:])
    return done.stdout


def test_what_is_taken_away_is_gone(tmp_path):
    """The test of the tests: each kind of thing fails as it does where there is none."""
    for line, error in {
        "import os; os.O_DIRECT": "AttributeError",
        "import mmap; mmap.MADV_HUGEPAGE": "AttributeError",
        "import ctypes; ctypes.CDLL(None).renameat2": "AttributeError",
        "open('/proc/self/stat')": "FileNotFoundError",
        "from pathlib import Path; Path('/proc/self/stat').read_text()": "FileNotFoundError",
        "import os; os.listdir('/proc/self/fd')": "FileNotFoundError",
    }.items():
        ended(line, cwd=tmp_path)
        caught = f"{HEAD}try:\n    {line}\nexcept {error}:\n    sys.exit(3)"
        ended(caught, cwd=tmp_path, code=3)


def test_every_module_is_imported(tmp_path):
    """Only those of a framework that is not installed are not, and they say which."""
    lines = ended(IMPORTS, cwd=tmp_path).splitlines()
    lacking = [line.split(maxsplit=2)[1:] for line in lines if line.startswith("lacks ")]
    assert len([line for line in lines if line.startswith("imported ")]) > 300
    optional = (
        "accelerate",
        "keras",
        "lightning",
        "stable_baselines3",
        "transformers",
        "xgboost",
        "lightgbm",
        "catboost",
        "ultralytics",
    )
    assert [] == [each for each in lacking if not each[0].startswith(tuple(f"holdfast.{name}" for name in optional))]


def test_a_run_saves_and_resumes_and_the_commands_look_at_it(tmp_path):
    """The state is that of a run without an end between; a supervisor starts a command and hands on its exit code."""
    ended(HEAD + RUN, 4, cwd=tmp_path)
    assert "28.0 {'total': 28}" == ended(HEAD + RUN, 8, cwd=tmp_path).strip()
    told = {}
    for line, code in {
        "ls run": 0,
        "show run": 0,
        "verify run": 0,
        "diff run@4 run@8": 1,
        "export run --all -o m.npz": 0,
        "status run": 0,
        "prune run --keep Last(1)": 0,
        f"run -- {shutil.which('false')}": 8,
    }.items():
        told[line] = ended(HEAD + COMMANDS, *line.split(), cwd=tmp_path, code=code)
    assert "step-000000008" in told["ls run"]
    assert "2 of 3 checkpoints removed" in told["prune run --keep Last(1)"]
    assert (tmp_path / "m.npz").exists()
    assert "not known: there is no /proc" in ended(HEAD + COMMANDS, "doctor", "run", cwd=tmp_path)
