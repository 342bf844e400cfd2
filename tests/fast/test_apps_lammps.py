"""The adapter of LAMMPS, without the program; tests/slow/test_apps_real.py has it."""

import shlex
import shutil

import pytest

from holdfast.apps.lammps import Lammps
from holdfast.apps.program import ProgramExit
from holdfast.errors import UsageError

LMP = ["lmp", "-in", "in.x"]
SCRIPT = 'if "$(is_defined(variable,rst))" then "read_restart ${rst}"\nrestart 500 ck.a ck.b\n'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("restart 500 ck.a ck.b", ["ck.a", "ck.b"]),
        ("restart ${n} out/ck.${name}.a out/ck.$x", ["out/ck.*.a", "out/ck.*"]),
        ("restart 500 poly.*.ck", ["poly.*.ck"]),
        ("restart 500 poly", ["poly.*"]),
        ("restart 500 poly fileper 4", ["poly.*"]),
        ("restart 500 &\n  ck.a ck.b  # two", ["ck.a", "ck.b"]),
    ],
)
def test_checkpoints_are_where_the_script_says(tmp_path, line, expected):
    """Of a `restart` line; variables may be anything."""
    (tmp_path / "in.x").write_text("# restart 5 no\nread_restart ${rst}\n" + line)
    program = Lammps(tmp_path, tmp_path)
    program.begin(LMP, None, None)
    assert expected == program._globs


@pytest.mark.parametrize(
    ("command", "script", "line"),
    [
        ("true", SCRIPT, "the command holds no `lmp`"),
        ("lmp", SCRIPT, "give the input script with `-in FILE`"),
        ("lmp -in none", SCRIPT, "give the input script with `-in FILE`"),
        ("lmp -in in.absent", SCRIPT, r"in\.absent: No such file or directory"),
        ("lmp -in in.x", "run 5", r"in\.x: writes no checkpoints; add a line such as `restart 1000 ck\.a ck\.b`"),
        ("lmp -in in.x", "restart 0\nrun 5", "writes no checkpoints"),
        ("lmp -in in.x", "restart 5 a b", "cannot go on from a checkpoint; let it begin with: if "),
        ("lmp -in in.x", SCRIPT + "restart 5 ck.%", "restart files in parts"),
    ],
)  # fmt: skip
def test_what_it_cannot_look_after_is_refused(tmp_path, command, script, line):
    """In one line that says what to write, before hours are lost."""
    (tmp_path / "in.x").write_text(script)
    with pytest.raises(UsageError, match=line):
        Lammps(tmp_path, tmp_path).begin(command.split(), None, None)


def test_what_a_script_includes_counts(tmp_path):
    """The `restart` line may stand in another file."""
    (tmp_path / "in.x").write_text("include in.y\nread_restart ${rst}")
    (tmp_path / "in.y").write_text("include in.x\nrestart 5 ck.a ck.b")
    program = Lammps(tmp_path, tmp_path)
    program.begin(shlex.split("lmp -i in.x"), None, None)
    assert ["ck.a", "ck.b"] == program._globs


def test_the_command_line_becomes(tmp_path):
    """The variable `rst` where there is a checkpoint; of a limit, a script of ours that includes the user's."""
    (tmp_path / "in.x").write_text(SCRIPT)
    whole = b"LammpS RestartT\0" + bytes(100) + b"LammpS RestartT\0"
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "ck.a").write_bytes(whole)
    program = Lammps(tmp_path, tmp_path / "room")
    (tmp_path / "room").mkdir()
    words = program.begin(shlex.split("mpirun -np 4 lmp_mpi -in in.x"), tmp_path / "kept", 90.7)
    limit = tmp_path / "room" / "limit.in"
    rst = str(tmp_path / "kept" / "ck.a")
    assert shlex.split(f"mpirun -np 4 lmp_mpi -in {limit} -var rst {rst}") == [*words]
    assert 'timer timeout 90\ninclude "in.x"\n' == limit.read_text()


def test_its_own_limit_stays(tmp_path):
    """A script that says `timer timeout` itself knows better."""
    (tmp_path / "in.x").write_text(SCRIPT + "timer timeout 1:00:00 every 100\n")
    assert LMP == Lammps(tmp_path, tmp_path).begin(LMP, None, 90.0)


def test_another_programs_checkpoint_is_not_gone_on_from(tmp_path):
    """It says so instead of failing in the midst."""
    (tmp_path / "in.x").write_text(SCRIPT)
    (tmp_path / "kept").mkdir()
    shutil.copy(tmp_path / "in.x", tmp_path / "kept" / "run.cpt")
    with pytest.raises(UsageError, match="holds no restart file of LAMMPS"):
        Lammps(tmp_path, tmp_path).begin(LMP, tmp_path / "kept", None)


def test_a_log_tells_what_the_screen_does_not(tmp_path):
    """With `-screen none` the log alone says how it ended; an old log says nothing."""
    (tmp_path / "in.x").write_text(SCRIPT)
    (tmp_path / "log.lammps").write_text("Total wall time: 0:00:05\n")
    program = Lammps(tmp_path, tmp_path)
    program.begin(shlex.split("lmp -in in.x -screen none"), None, None)
    assert "failed" == program.verdict(ProgramExit(0, "", told=False))
    (tmp_path / "log.lammps").write_text("WARNING: Wall time limit reached\nTotal wall time: 0:00:05\n")
    assert "stopped" == program.verdict(ProgramExit(0, "", told=False))
    (tmp_path / "log.lammps").write_text("Loop time of 2\nTotal wall time: 0:00:05\n")
    assert "done" == program.verdict(ProgramExit(0, "", told=False))
