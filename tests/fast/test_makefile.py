"""`make demo` and the environments: each long part is announced; torch's small wheel is taken where there is one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
TORCH = re.findall(r"^TORCH := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
# It makes environments with a `holdfast` that tells its arguments, and installs by writing down what it was asked for.
PYTHON = """#!/bin/sh
echo "$@" >> asked
case "$*" in
*"-m venv"*) for last; do :; done; mkdir -p $last/bin; cp $0 $last/bin/python; cp $0 $last/bin/holdfast ;;
*+cpu*) exit {code} ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    """What make reads, and a PATH with nothing that tells of a GPU."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "path").mkdir()
    for name in ("sh", "grep", "mkdir", "cp", "touch", "test", "make", "rm"):
        (tmp_path / "path" / name).symlink_to(shutil.which(name))
    return tmp_path


def made(checkout, *targets, code=0):
    """The lines that make prints, and what Python was asked for; without the wheel for the CPU, `code` is 1."""
    python = checkout / "python"
    python.write_text(PYTHON.format(code=code))
    python.chmod(0o755)
    ended = subprocess.run(
        ["make", "--no-print-directory", f"PYTHON={python}", *targets],
        cwd=checkout,
        env={"PATH": str(checkout / "path"), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.splitlines(), (checkout / "asked").read_text().splitlines()


def test_make_demo_says_what_it_does_before_each_long_part(checkout):
    """First what it is for, then the environment and its parts, then the drill; and the second time only the drill."""
    begins = ["make demo: trains", ".venv is built, once", "2 of 3: the", "3 of 3: Holdfast", "the drill: two"]
    told, _ = made(checkout, "demo")
    assert begins == [begin for begin, line in zip(begins, told, strict=False) if line.startswith(begin)]
    assert f"2 of 3: the {LOCK.count('==')} packages of requirements.lock" in told
    told, _ = made(checkout, "demo")
    assert [begins[0], begins[4]] == [
        line[: len(begin)] for begin, line in zip((begins[0], begins[4]), told, strict=False)
    ]


@pytest.mark.parametrize("code", [0, 1])
def test_the_wheel_for_the_cpu_is_asked_for_first(code, checkout):
    """Where the index has none, that is told, and the lock's own is installed; the other packages are in any case."""
    told, asked = made(checkout, "setup", code=code)
    assert asked[1].endswith(f"install --quiet --no-deps {TORCH}+cpu")
    assert asked[2].endswith("install --quiet --requirement requirements.lock")
    assert code == len([line for line in told if line.startswith("the index has no")])
    assert TORCH in LOCK.splitlines()


@pytest.mark.parametrize("gpu", [False, True])
def test_a_machine_with_a_gpu_gets_the_wheel_that_can_use_it(gpu, checkout):
    """nvidia-smi tells. An environment without torch gets none either."""
    if gpu:
        (checkout / "path/nvidia-smi").symlink_to(sys.executable)
    else:
        lock = checkout / "requirements.lock"
        lock.write_text(LOCK.replace(f"{TORCH}\n", ""))
        os.utime(lock)
    _, asked = made(checkout, "setup")
    assert [] == [line for line in asked if "+cpu" in line]
