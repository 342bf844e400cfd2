"""LAMMPS under the supervisor: a real lmp, killed, ends with the bytes of the uninterrupted one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.apps.lammps import Lammps, step_of
from holdfast.apps.program import Ended
from holdfast.errors import UsageError
from programs import Watched, by_hand, copied, interrupted, needs, steps

LMP = ["lmp", "-in", "in.melt"]
STEPS = 10_000
DOCUMENT = (Path(__file__).parents[2] / "docs" / "apps.md").read_text()
MELT = re.search(r"^```lammps\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)[1]


@pytest.fixture(scope="module")
def melt(tmp_path_factory):
    """864 atoms of the melt in docs/apps.md, uninterrupted."""
    place = tmp_path_factory.mktemp("melt")
    (place / "in.melt").write_text(MELT)
    subprocess.run(LMP, check=True, cwd=place, stdout=subprocess.DEVNULL)
    return place


@pytest.fixture
def place(tmp_path):
    (tmp_path / "in.melt").write_text(MELT)
    return tmp_path


def results(place):
    """Positions, velocities and energies of every frame, and the final state."""
    return {path.name: path.read_bytes() for path in [*place.glob("frame.*"), place / "final.data"]}


def energies(place):
    """Of every step the line that was printed last, whatever start printed it."""
    lines = re.findall(r"^ +(\d+) +(-?\d+\.\d+ .*?) *$", (place / "thermo.log").read_text(), re.MULTILINE)
    return dict(lines)


def newest(place):
    found = [step for name in ("ck.a", "ck.b") if (step := step_of(place / name)) is not None]
    return max(found, default=None)


@needs("lmp")
class TestReal:
    """With the program itself, on the very script that docs/apps.md shows."""

    def test_five_kills_leave_no_trace_in_the_results(self, place, melt):
        """Every frame, its energies and the final state are the uninterrupted ones, byte for byte."""
        interrupted(place, "lammps", LMP, ["TERM", "KILL", "SUPERVISOR", "TERM", "KILL"], lambda: newest(place))
        assert 0 < max(steps(place)) < STEPS
        with Watched(place, "lammps", LMP) as it:
            assert 0 == it.end(), it.said
        assert results(melt) == results(place)
        assert len(results(place)) == STEPS // 500 + 2
        assert energies(melt) == energies(place)
        assert steps(place)[-1] == STEPS

    @pytest.mark.parametrize("where", ["in the store", "before it was committed"])
    def test_a_cut_checkpoint_is_quarantined_and_the_older_used(self, place, melt, where):
        """Found by our digests when it was cut in the store, and by LAMMPS itself when it was damaged before."""
        interrupted(place, "lammps", LMP, ["TERM", "TERM"], lambda: newest(place))
        older, last = steps(place)[-2:]
        store = Store(place / "run")
        (file,) = store.latest().path.glob("ck.*")
        data = file.read_bytes()
        if where == "in the store":
            file.write_bytes(data[:5000])
            bad = last
        else:
            bad, older = last + 1, last
            with store.directory(step=bad) as path:
                (path / file.name).write_bytes(data[:5000] + data[-16:])
            store.close()
        with Watched(place, "lammps", LMP) as it:
            assert 0 == it.end(), it.said
        (aside,) = (place / "run" / "quarantine").iterdir()
        assert aside.name.startswith(f"step-{bad:09d}")
        assert f"checkpoints/step-{older:09d}/ck." in (place / "thermo.log").read_text()
        assert results(melt) == results(place)

    def test_its_limit_stops_it_early_and_that_is_not_the_end(self, place, melt, tmp_path):
        """After `timer timeout` it says 0, writes its final data and the total time, and has not finished."""
        program = Lammps(place, place)
        ended, verdict = by_hand(program, LMP, place, time_left_s=2.0)
        assert (ended.code, verdict) == (0, "stopped")
        assert (place / "final.data").exists()
        checkpoint = copied(program.checkpoint(), tmp_path / "kept" / "1")
        ended, verdict = by_hand(program, LMP, place, checkpoint, 3600.0)
        assert (ended.code, verdict) == (0, "done")
        assert results(melt) == results(place)

    def test_how_it_ended_is_told_by_what_it_said(self, place):
        """A signal kills it, which is a stop when we sent it; an error in the script is a failure."""
        program = Lammps(place, place)
        ended, verdict = by_hand(program, LMP, place, after_s=1.0)
        assert (ended.code, verdict) == (-15, "stopped")
        (place / "in.melt").write_text(MELT.replace("pair_style", "pair_stile"))
        ended, verdict = by_hand(program, LMP, place)
        assert (ended.code, verdict) == (1, "failed")

    def test_a_loop_in_the_script_works_under_a_limit(self, place, tmp_path):
        """`jump SELF` finds its label in the user's script, not in ours that includes it."""
        loop = MELT.replace(f"run {STEPS} upto", "label again\nvariable i loop 2\nrun 500\nnext i\njump SELF again")
        (place / "in.melt").write_text(loop)
        ended, verdict = by_hand(Lammps(place, tmp_path), LMP, place, time_left_s=100.0)
        assert (ended.code, verdict) == (0, "done")
        assert newest(place) == 1000


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
    program.begin(["lmp", "-in", "in.x"], None, None)
    assert expected == program._globs


@pytest.mark.parametrize(
    ("command", "script", "line"),
    [
        (["true"], SCRIPT, "the command holds no `lmp`"),
        (["lmp"], SCRIPT, "give the input script with `-in FILE`"),
        (["lmp", "-in", "none"], SCRIPT, "give the input script with `-in FILE`"),
        (["lmp", "-in", "in.absent"], SCRIPT, r"in\.absent: No such file or directory"),
        (["lmp", "-in", "in.x"], "run 5", r"in\.x: writes no checkpoints; add a line such as `restart 1000 ck\.a ck\.b`"),
        (["lmp", "-in", "in.x"], "restart 0\nrun 5", "writes no checkpoints"),
        (["lmp", "-in", "in.x"], "restart 5 a b", "cannot go on from a checkpoint; let it begin with: if "),
        (["lmp", "-in", "in.x"], SCRIPT + "restart 5 ck.%", "restart files in parts"),
    ],
)  # fmt: skip
def test_what_it_cannot_look_after_is_refused(tmp_path, command, script, line):
    """In one line that says what to write, before hours are lost."""
    (tmp_path / "in.x").write_text(script)
    with pytest.raises(UsageError, match=line):
        Lammps(tmp_path, tmp_path).begin(command, None, None)


def test_what_a_script_includes_counts(tmp_path):
    """The `restart` line may stand in another file."""
    (tmp_path / "in.x").write_text("include in.y\nread_restart ${rst}")
    (tmp_path / "in.y").write_text("include in.x\nrestart 5 ck.a ck.b")
    program = Lammps(tmp_path, tmp_path)
    program.begin(["lmp", "-i", "in.x"], None, None)
    assert ["ck.a", "ck.b"] == program._globs


def test_the_command_line_becomes(tmp_path):
    """The variable `rst` where there is a checkpoint; of a limit, a script of ours that includes the user's."""
    (tmp_path / "in.x").write_text(SCRIPT)
    whole = b"LammpS RestartT\0" + bytes(100) + b"LammpS RestartT\0"
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "ck.a").write_bytes(whole)
    program = Lammps(tmp_path, tmp_path / "room")
    (tmp_path / "room").mkdir()
    words = program.begin(["mpirun", "-np", "4", "lmp_mpi", "-in", "in.x"], tmp_path / "kept", 90.7)
    limit = tmp_path / "room" / "limit.in"
    rst = str(tmp_path / "kept" / "ck.a")
    assert ["mpirun", "-np", "4", "lmp_mpi", "-in", str(limit), "-var", "rst", rst] == [*words]
    assert 'timer timeout 90\ninclude "in.x"\n' == limit.read_text()


def test_its_own_limit_stays(tmp_path):
    """A script that says `timer timeout` itself knows better."""
    (tmp_path / "in.x").write_text(SCRIPT + "timer timeout 1:00:00 every 100\n")
    assert ["lmp", "-in", "in.x"] == Lammps(tmp_path, tmp_path).begin(["lmp", "-in", "in.x"], None, 90.0)


def test_another_programs_checkpoint_is_not_gone_on_from(tmp_path):
    """It says so instead of failing in the midst."""
    (tmp_path / "in.x").write_text(SCRIPT)
    (tmp_path / "kept").mkdir()
    shutil.copy(tmp_path / "in.x", tmp_path / "kept" / "run.cpt")
    with pytest.raises(UsageError, match="holds no restart file of LAMMPS"):
        Lammps(tmp_path, tmp_path).begin(["lmp", "-in", "in.x"], tmp_path / "kept", None)


def test_a_log_tells_what_the_screen_does_not(tmp_path):
    """With `-screen none` the log alone says how it ended; an old log says nothing."""
    (tmp_path / "in.x").write_text(SCRIPT)
    (tmp_path / "log.lammps").write_text("Total wall time: 0:00:05\n")
    program = Lammps(tmp_path, tmp_path)
    program.begin(["lmp", "-in", "in.x", "-screen", "none"], None, None)
    assert "failed" == program.verdict(Ended(0, "", told=False))
    (tmp_path / "log.lammps").write_text("WARNING: Wall time limit reached\nTotal wall time: 0:00:05\n")
    assert "stopped" == program.verdict(Ended(0, "", told=False))
    (tmp_path / "log.lammps").write_text("Loop time of 2\nTotal wall time: 0:00:05\n")
    assert "done" == program.verdict(Ended(0, "", told=False))
