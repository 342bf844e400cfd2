"""The adapters of GROMACS, LAMMPS, DMTCP and CRIU, without the programs; tests/slow/test_apps_real.py has those."""

import os
import shlex
from typing import Any

import pytest

from holdfast.apps.criu import SIZES, Criu
from holdfast.apps.dmtcp import Dmtcp
from holdfast.apps.gromacs import Gromacs, step_of
from holdfast.apps.lammps import Lammps
from holdfast.apps.program import ProgramExit
from holdfast.errors import UsageError
from system_fakes import NAMES, install

MDRUN = "gmx mdrun -deffnm run -reprod -ntmpi 1 -ntomp 1 -cpt 0.01"
LMP = "lmp -in in.x"
SCRIPT = 'if "$(is_defined(variable,rst))" then "read_restart ${rst}"\nrestart 500 ck.a ck.b\n'
WHOLE = b"LammpS RestartT\0" + bytes(100) + b"LammpS RestartT\0"
APPS: dict[str, Any] = {
    "gromacs": (Gromacs, MDRUN),
    "lammps": (Lammps, LMP),
    "dmtcp": (Dmtcp, "true"),
    "criu": (Criu, "true"),
}


@pytest.fixture
def kept(tmp_path):
    """A checkpoint that some other program has written, and a script for LAMMPS."""
    (tmp_path / "in.x").write_text(SCRIPT)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "other.cpt").touch()
    return tmp_path / "kept"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The fakes of both programs that checkpoint any other."""
    places = [str(install(tmp_path / f"bin-{app}", app)) for app in NAMES]
    monkeypatch.setenv("PATH", os.pathsep.join([*places, os.environ["PATH"]]))


REFUSED: list[tuple[Any, str, str, str]] = [
    # adapter, command, script of LAMMPS, what it says
    (Gromacs, "gmx energy", "", "the command holds no `mdrun`"),
    (Gromacs, "gmx mdrun -multidir a b", "", "run each under a supervisor of its own"),
    (Lammps, "true", SCRIPT, "the command holds no `lmp`"),
    (Lammps, "lmp", SCRIPT, "give the input script with `-in FILE`"),
    (Lammps, "lmp -in none", SCRIPT, "give the input script with `-in FILE`"),
    (Lammps, "lmp -in in.absent", SCRIPT, "in.absent: No such file or directory"),
    (Lammps, LMP, "run 5", "in.x: writes no checkpoints; add a line such as `restart 1000 ck.a ck.b`"),
    (Lammps, LMP, "restart 0\nrun 5", "writes no checkpoints"),
    (Lammps, LMP, "restart 5 a b", "cannot go on from a checkpoint; let it begin with this line"),
    (Lammps, LMP, SCRIPT + "restart 5 ck.%", "restart files in parts"),
    (Dmtcp, "true", "", "there is no dmtcp_launch on PATH"),
    (Criu, "true", "", "there is no criu on PATH"),
]


def test_what_an_adapter_cannot_look_after_is_refused(tmp_path, monkeypatch):
    """In one line, before anything is started."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for adapter, command, script, line in REFUSED:
        (tmp_path / "in.x").write_text(script)
        with pytest.raises(UsageError) as caught:
            adapter(tmp_path, tmp_path).begin(command.split(), None, None)
        assert line in str(caught.value), command


@pytest.mark.usefixtures("installed")
def test_another_programs_checkpoint_is_not_gone_on_from(tmp_path, kept):
    """Two programs in one directory have two stores; one would take the other's file for damage, or fail in
    the midst.
    """
    for app, what in (
        ("gromacs", "holds no run.cpt; another run's? Give another --run"),
        ("lammps", "holds no restart file of LAMMPS; another program's?"),
        ("dmtcp", "holds no image of DMTCP; another program's?"),
        ("criu", "holds no dump of CRIU; another program's?"),
    ):
        adapter, command = APPS[app]
        with pytest.raises(UsageError) as caught:
            adapter(tmp_path, tmp_path).begin(command.split(), kept, None)
        assert what in str(caught.value)


# GROMACS -------------------------------------------------------------------------------------------------------------

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


def test_the_command_line_of_mdrun_becomes(tmp_path, kept):
    """-cpi with -append where there is a checkpoint, -maxh where there is a limit; the user's own words stay."""
    for command, name, expected, left_s in FORMS:
        (kept / str(name)).touch()
        words = Gromacs(tmp_path, tmp_path).begin(command.split(), kept if name else None, left_s)
        assert expected.format(kept / str(name)).split() == [*words]


def test_without_a_final_structure_its_words_decide(tmp_path):
    """-noconfout writes none."""
    program = Gromacs(tmp_path, tmp_path)
    program.begin(["mdrun", "-noconfout"], None, None)
    early = "Step 12160: Run time exceeded 0.000 hours, will terminate the run within 20 steps"
    for said, verdict in (("Performance: 264.5", "done"), (early, "stopped")):
        assert verdict == program.verdict(ProgramExit(0, said, told=False))


def test_a_checkpoint_that_is_being_written_is_none(tmp_path):
    """Its first and its last number, and all between, must be there."""
    for size in (0, 3, 4, 100, 5000):
        (tmp_path / "run.cpt").write_bytes(b"\x00\x02\x9f\x29".ljust(size, b"\0")[:size])
        assert step_of(tmp_path / "run.cpt") is None
    assert step_of(tmp_path / "absent.cpt") is None


# LAMMPS --------------------------------------------------------------------------------------------------------------


def test_checkpoints_of_lammps_are_where_the_script_says(tmp_path):
    """Of a `restart` line, also in a file that the script includes; variables may be anything."""
    for line, expected in (
        ("restart 500 ck.a ck.b", ["ck.a", "ck.b"]),
        ("restart ${n} out/ck.${name}.a out/ck.$x", ["out/ck.*.a", "out/ck.*"]),
        ("restart 500 poly.*.ck", ["poly.*.ck"]),
        ("restart 500 poly", ["poly.*"]),
        ("restart 500 poly fileper 4", ["poly.*"]),
        ("restart 500 &\n  ck.a ck.b  # two", ["ck.a", "ck.b"]),
        ("include in.more  # the rest", ["ck.a", "ck.b"]),
    ):
        (tmp_path / "in.more").write_text("include in.x\n" + SCRIPT)
        (tmp_path / "in.x").write_text("# restart 5 no\nread_restart ${rst}\n" + line)
        program = Lammps(tmp_path, tmp_path)
        program.begin(LMP.replace("-in", "-i").split(), None, None)
        assert expected == program._globs


def test_the_command_line_of_lammps_becomes(tmp_path, kept):
    """The variable `rst` where there is a checkpoint; of a limit, a script of ours that includes the user's. A script
    that says `timer timeout` itself knows better.
    """
    (kept / "ck.a").write_bytes(WHOLE)
    words = Lammps(tmp_path, kept).begin(shlex.split("mpirun -np 4 lmp_mpi -in in.x"), kept, 90.7)
    limit = kept / "limit.in"
    assert shlex.split(f"mpirun -np 4 lmp_mpi -in {limit} -var rst {kept / 'ck.a'}") == [*words]
    assert 'timer timeout 90\ninclude "in.x"\n' == limit.read_text()
    (tmp_path / "in.x").write_text(SCRIPT + "timer timeout 1:00:00 every 100\n")
    assert LMP.split() == Lammps(tmp_path, tmp_path).begin(LMP.split(), None, 90.0)


@pytest.mark.usefixtures("kept")
def test_a_log_tells_what_the_screen_does_not(tmp_path):
    """With `-screen none` the log alone says how it ended; an old log says nothing."""
    log = tmp_path / "log.lammps"
    log.write_text("Total wall time: 0:00:05\n")
    program = Lammps(tmp_path, tmp_path)
    program.begin(shlex.split(f"{LMP} -screen none"), None, None)
    for line, verdict in (
        (None, "failed"),
        ("WARNING: Wall time limit reached", "stopped"),
        ("Loop time of 2", "done"),
    ):
        if line is not None:
            log.write_text(f"{line}\nTotal wall time: 0:00:05\n")
        assert verdict == program.verdict(ProgramExit(0, "", told=False))


# DMTCP and CRIU -----------------------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path):
    return tmp_path / "images"


@pytest.fixture
def dmtcp(tmp_path, installed):
    del installed
    program = Dmtcp(tmp_path, tmp_path)
    program.begin(["true"], None, None)
    return program


def test_the_coordinators_script_ends_a_set_of_images(dmtcp, images):
    """It is written after the last image; one that is being renamed, or older than an image, is not the end."""
    (images / "ckpt_a.dmtcp").write_text("a")
    assert dmtcp.checkpoint() is None
    (images / "dmtcp_restart_script.sh").write_text("#")
    os.utime(images / "ckpt_a.dmtcp", ns=(0, 0))
    assert [images / "ckpt_a.dmtcp"] == [*dmtcp.checkpoint().files]
    (images / "ckpt_b.dmtcp.temp").write_text("b")
    assert dmtcp.checkpoint() is None
    (images / "ckpt_b.dmtcp.temp").rename(images / "ckpt_b.dmtcp")
    os.utime(images / "dmtcp_restart_script.sh", ns=(0, 0))
    assert dmtcp.checkpoint() is None


def test_0_of_dmtcp_is_no_success_after_an_unfinished_image(dmtcp, images):
    """It says 0 of what it kills, whatever became of the image. Without an image the program ended just before it was
    asked.
    """
    dmtcp.stop(15, 1)
    assert "done" == dmtcp.verdict(ProgramExit(0, "", told=True))
    (images / "ckpt_a.dmtcp.temp").write_text("a")
    assert "stopped" == dmtcp.verdict(ProgramExit(0, "", told=True))


@pytest.mark.usefixtures("installed")
def test_a_file_that_is_gone_is_told(tmp_path, kept):
    """CRIU restores no file; it would only say "bad size"."""
    (kept / SIZES).write_text('{"%s": 7}' % (tmp_path / "lines"))
    program = Criu(tmp_path, tmp_path)
    with pytest.raises(UsageError, match="lines is gone, and had 7 when kept was made: put it back, whole"):
        program.begin(["true"], kept, None)
    (tmp_path / "lines").write_text("123456789")
    program.begin(["true"], kept, None)
    assert "1234567" == (tmp_path / "lines").read_text()
