"""Quantum ESPRESSO and CP2K under the supervisor: killed, each ends with the energy of the uninterrupted one.

strace stops the program itself at a call of its own, in the midst of its steps: it cannot end before it is struck.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from needed import missing
from programs import Watched
from supervised import PATIENCE_S, until

EXAMPLES = Path(__file__).parents[2] / "examples"
ALONE = {"OMP_NUM_THREADS": "1"}  # CP2K's threads wait for one another at full speed
CALL = 4  # it is the third step, or later


class Subject(NamedTuple):
    """An example, and what the laws have to know of it."""

    commands: tuple[str, str]  # the first start, and each later one
    prepare: str
    pattern: str  # of its results in its output: each a number
    tolerance: float  # what the program itself is asked for
    resumes: str  # what it prints when it goes on from its files
    opened: str  # a file that it opens in each step, when those of the step before are written
    cut: str  # a file without which it cannot go on
    early: str  # what it prints at the end although it was stopped early
    asked: str  # the file that asks it to stop
    looks_s: float  # for which it looks so often


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
        "work/h.EXIT",
        0,
    ),
    "cp2k": Subject(
        ("cp2k -i water.inp", "cp2k -i again.inp"),
        "true",
        r"ENERGY\| Total FORCE_EVAL \( QS \) energy \[a.u.\]: +(\S+)",
        1e-8,
        "RESTART INFORMATION",
        "water-1.ener",
        "water-1.restart",
        "PROGRAM ENDED AT",
        "water.EXIT",
        20,  # its cp_external_control.F: files will only be checked every 20 seconds
    ),
}


@pytest.fixture(scope="module", params=SUBJECTS)
def name(request):
    """The name of one that is installed."""
    if reason := missing("strace", SUBJECTS[request.param].commands[0].split()[0]):
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope="module")
def whole(name, tmp_path_factory):
    """An uninterrupted run of it."""
    place = tmp_path_factory.mktemp("whole")
    shutil.copytree(EXAMPLES / name, place, dirs_exist_ok=True)
    for command in (SUBJECTS[name].prepare, SUBJECTS[name].commands[0] + " > printed"):
        subprocess.run(command, shell=True, check=True, cwd=place, capture_output=True, env=os.environ | ALONE)
    return place


def result(subject, printed):
    """The energy of the last step."""
    return float(re.findall(subject.pattern, printed)[-1])


def struck(place, subject, kill):
    """One start that stops itself at its `CALL`th opening of `opened`, and is then told to stop, or killed.

    TERM: the supervisor is told, and the program goes on. SUPERVISOR: both are killed.
    """
    log = place / "strace"
    log.unlink(missing_ok=True)
    stop = f"inject=openat:signal=STOP:when={CALL}"
    words = ["strace", "-D", "-o", log.name, "-P", subject.opened, "-e", "trace=openat", "-e", stop]
    example = (place / "app.toml").read_text()
    program = subject.commands[0].split()[0]
    assert 2 == example.count(f'["{program}"')
    (place / "traced.toml").write_text(example.replace(f'["{program}"', f'[{str(words)[1:-1]}, "{program}"'))
    stopped = lambda: log.exists() and "stopped by SIGSTOP" in log.read_text()
    with Watched(place, "traced.toml", [], **ALONE) as it:
        until(lambda: stopped() or it.process.poll() is not None, "the call", PATIENCE_S * 4)
        assert stopped(), f"it ended before it was struck:\n{it.said}"
        if kill == "SUPERVISOR":
            it.kill()
            return
        it.send("TERM")
        until((place / subject.asked).exists, "the file that asks it to stop")
        until(lambda: time.time() > log.stat().st_mtime + subject.looks_s, "its next look", PATIENCE_S * 2)
        os.kill(it.program(), signal.SIGCONT)
        until(lambda: it.process.poll() is not None, "its end", PATIENCE_S * 4)
        assert 75 == it.end(), f"it was not stopped early:\n{it.said}"


def test_kills_and_a_cut_file_change_no_result_of_a_quantum_chemistry_program(name, whole, tmp_path):
    """Told once, and killed once together with the supervisor, it goes on: the energies differ by less than 1e-8.

    A kill in the midst of a save leaves files from which pw.x cannot go on by itself:
    https://github.com/aiidateam/aiida-quantumespresso/issues/225. What was kept is put back.
    """
    subject = SUBJECTS[name]
    for path in whole.iterdir():
        if path.suffix in {".in", ".inp", ".toml", ".UPF"}:
            shutil.copy(path, tmp_path)
    struck(tmp_path, subject, "TERM")
    struck(tmp_path, subject, "SUPERVISOR")
    assert subject.early in (tmp_path / "out").read_text()
    cut = tmp_path / subject.cut
    cut.write_bytes(cut.read_bytes()[:100])
    with Watched(tmp_path, "app.toml", [], **ALONE) as it:
        until(lambda: it.process.poll() is not None, "its end", PATIENCE_S * 4)
        assert 0 == it.end(), it.said
    assert re.search(
        rf"{re.escape(subject.cut)}.*: not what was kept, and now in .*; the program goes on from", it.said
    )
    assert subject.resumes in it.printed[it.before :]
    assert abs(result(subject, it.printed) - result(subject, (whole / "printed").read_text())) < subject.tolerance
