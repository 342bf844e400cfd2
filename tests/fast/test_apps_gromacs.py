"""The adapter of GROMACS, without the program; tests/slow/test_apps_real.py has it."""

import shlex
from pathlib import Path

import pytest

from holdfast.apps.gromacs import Gromacs, step_of
from holdfast.apps.program import ProgramExit
from holdfast.errors import UsageError

MDRUN = "gmx mdrun -deffnm run -reprod -ntmpi 1 -ntomp 1 -cpt 0.01"
FORMS = [
    # command, its checkpoint, what it becomes, seconds left
    (MDRUN, None, f"{MDRUN} -maxh 1.00000", 3600.0),
    ("gmx mdrun -maxh 0.5", None, "gmx mdrun -maxh 0.5", 3600.0),
    ("gmx mdrun -maxh 2 -v", None, "gmx mdrun -v -maxh 1.00000", 3600.0),
    ("gmx mdrun -cpi -v", None, "gmx mdrun -v", None),
    ("gmx mdrun -v", "state.cpt", "gmx mdrun -v -cpi {} -append", None),
    ("gmx mdrun -cpi old.cpt", "state.cpt", "gmx mdrun -cpi {} -append", None),
    ("gmx mdrun -noappend", "state.cpt", "gmx mdrun -noappend -cpi {}", None),
    ("mpirun gmx_mpi mdrun -cpo a", "a.cpt", "mpirun gmx_mpi mdrun -cpo a -cpi {} -append", None),
    ("mdrun_mpi -deffnm x", "x.cpt", "mdrun_mpi -deffnm x -cpi {} -append", None),
]


@pytest.mark.parametrize(("command", "kept", "expected", "left_s"), FORMS)
def test_the_command_line_becomes(tmp_path, command, kept, expected, left_s):
    """-cpi with -append where there is a checkpoint, -maxh where there is a limit; the user's own words stay."""
    checkpoint = tmp_path / "kept"
    checkpoint.mkdir()
    if kept:
        (checkpoint / kept).touch()
    words = Gromacs(tmp_path, tmp_path).begin(command.split(), checkpoint if kept else None, left_s)
    assert expected.format(checkpoint / str(kept)).split() == [*words]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("gmx energy", "the command holds no `mdrun`"),
        ("gmx mdrun -multidir a b", "run each under a supervisor of its own"),
    ],
)
def test_what_it_cannot_look_after_is_refused(tmp_path, command, line):
    """In one line, before anything is started."""
    with pytest.raises(UsageError, match=line):
        Gromacs(tmp_path, tmp_path).begin(command.split(), None, None)


def test_another_runs_checkpoint_is_not_gone_on_from(tmp_path):
    """Two simulations in one directory have two stores; mdrun would take the other's for damage."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "other.cpt").touch()
    with pytest.raises(UsageError, match=r"holds no run\.cpt; another run's\? Give another --run"):
        Gromacs(tmp_path, tmp_path).begin(MDRUN.split(), tmp_path / "kept", None)


def test_without_a_final_structure_its_words_decide(tmp_path):
    """-noconfout writes none."""
    program = Gromacs(tmp_path, tmp_path)
    program.begin(shlex.split("gmx mdrun -noconfout"), None, None)
    assert "done" == program.verdict(ProgramExit(0, "Performance: 264.5", told=False))
    early = "Step 12160: Run time exceeded 0.000 hours, will terminate the run within 20 steps"
    assert "stopped" == program.verdict(ProgramExit(0, early, told=False))


def test_a_checkpoint_that_is_being_written_is_none(tmp_path):
    """Its first and its last number, and all between, must be there."""
    file = Path(tmp_path / "run.cpt")
    for size in (0, 3, 4, 100, 5000):
        file.write_bytes(b"\x00\x02\x9f\x29".ljust(size, b"\0")[:size])
        assert step_of(file) is None
    assert step_of(tmp_path / "absent.cpt") is None
