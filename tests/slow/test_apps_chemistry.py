"""Quantum ESPRESSO and CP2K under the supervisor: killed, each ends with the energy of the uninterrupted one."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from needed import missing
from programs import Watched, interrupted
from supervised import PATIENCE_S, until

EXAMPLES = Path(__file__).parents[2] / "examples"


class Subject(NamedTuple):
    """An example, and what the laws have to know of it."""

    commands: tuple[str, str]  # the first start, and each later one
    prepare: str
    pattern: str  # of its results in its output: each a number
    tolerance: float  # what the program itself is asked for
    resumes: str  # what it prints when it goes on from its files
    written: str  # a file that it writes in each step
    cut: str  # a file without which it cannot go on
    early: str  # what it prints at the end although it was stopped early


SUBJECTS = {
    "quantum-espresso": Subject(
        ("pw.x -i first.in", "pw.x -i again.in"),
        "ld1.x < hydrogen.ld1",
        r"Final energy += +(\S+) Ry",
        1e-8,
        "Atomic positions from file used",
        "work/h.bfgs",
        "work/h.save/charge-density.dat",
        "JOB DONE.",
    ),
    "cp2k": Subject(
        ("cp2k -i water.inp", "cp2k -i again.inp"),
        "true",
        r"ENERGY\| Total FORCE_EVAL \( QS \) energy \[a.u.\]: +(\S+)",
        1e-8,
        "RESTART INFORMATION",
        "water-1.restart",
        "water-1.restart",
        "PROGRAM ENDED AT",
    ),
}


@pytest.fixture(scope="module", params=SUBJECTS)
def name(request):
    """The name of one that is installed."""
    if reason := missing(SUBJECTS[request.param].commands[0].split()[0]):
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope="module")
def whole(name, tmp_path_factory):
    """An uninterrupted run of it."""
    place = tmp_path_factory.mktemp("whole")
    shutil.copytree(EXAMPLES / name, place, dirs_exist_ok=True)
    for command in (SUBJECTS[name].prepare, SUBJECTS[name].commands[0] + " > printed"):
        subprocess.run(command, shell=True, check=True, cwd=place, capture_output=True)
    return place


def result(subject, printed):
    """The energy of the last step."""
    return float(re.findall(subject.pattern, printed)[-1])


def test_kills_and_a_cut_file_change_no_result_of_a_quantum_chemistry_program(name, whole, tmp_path):
    """Told once, and killed once together with the supervisor, it goes on: the energies differ by less than 1e-8.

    A kill in the midst of a save leaves files from which pw.x cannot go on by itself:
    https://github.com/aiidateam/aiida-quantumespresso/issues/225. What was kept is put back.
    """
    subject = SUBJECTS[name]
    for path in whole.iterdir():
        if path.suffix in {".in", ".inp", ".toml", ".UPF"}:
            shutil.copy(path, tmp_path)
    file = tmp_path / subject.written
    fresh = lambda: file.stat().st_mtime_ns if file.exists() else None
    interrupted(tmp_path, "app.toml", [], ["TERM", "SUPERVISOR"], fresh)
    assert subject.early in (tmp_path / "out").read_text()
    cut = tmp_path / subject.cut
    cut.write_bytes(cut.read_bytes()[:100])
    with Watched(tmp_path, "app.toml", []) as it:
        until(lambda: it.process.poll() is not None, "its end", PATIENCE_S * 4)
        assert 0 == it.end(), it.said
    assert re.search(
        rf"{re.escape(subject.cut)}.*: not what was kept, and now in .*; the program goes on from", it.said
    )
    assert subject.resumes in it.printed[it.before :]
    assert abs(result(subject, it.printed) - result(subject, (whole / "printed").read_text())) < subject.tolerance
