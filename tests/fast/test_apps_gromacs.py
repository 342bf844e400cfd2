"""GROMACS under the supervisor: a real mdrun, killed, ends with the bytes of the uninterrupted one."""

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.apps.gromacs import Gromacs, step_of
from holdfast.apps.program import Ended
from holdfast.errors import UsageError
from programs import Watched, by_hand, copied, interrupted, needs, steps
from supervised import until

MDRUN = ["gmx", "mdrun", "-deffnm", "run", "-reprod", "-ntmpi", "1", "-ntomp", "1", "-cpt", "0.01"]
STEPS = 8_000
MDP = f"""
integrator = md
nsteps = {STEPS}
dt = 0.002
nstxout-compressed = 500
nstenergy = 500
nstlog = 500
rcoulomb = 0.9
rvdw = 0.9
coulombtype = PME
tcoupl = v-rescale
tc-grps = System
tau-t = 0.1
ref-t = 300
gen-vel = yes
gen-seed = 7
ld-seed = 7
"""
TOP = """#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spce.itp"
[ system ]
water
[ molecules ]
"""
RESULTS = ("run.gro", "run.xtc", "run.edr")


def gmx(*words, place):
    done = subprocess.run(["gmx", *words], check=False, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def water(tmp_path_factory):
    """213 SPC/E waters in a box of 1.9 nm, from the files that GROMACS comes with; and the uninterrupted simulation."""
    place = tmp_path_factory.mktemp("water")
    (place / "md.mdp").write_text(MDP)
    (place / "topol.top").write_text(TOP)
    gmx("solvate", "-cs", "spc216.gro", "-box", "1.9", "1.9", "1.9", "-p", "topol.top", "-o", "water.gro", place=place)
    gmx("grompp", "-f", "md.mdp", "-c", "water.gro", "-p", "topol.top", "-o", "run.tpr", place=place)
    gmx(*MDRUN[1:], place=place)
    return place


@pytest.fixture
def place(water, tmp_path):
    shutil.copy(water / "run.tpr", tmp_path)
    return tmp_path


def results(place):
    return {name: (place / name).read_bytes() for name in RESULTS}


def newest(place):
    return step_of(place / "run.cpt")


@needs("gmx")
class TestReal:
    """With the program itself."""

    def test_five_kills_leave_no_trace_in_the_results(self, place, water):
        """Trajectory, energies and final structure are the uninterrupted ones, byte for byte."""
        interrupted(place, "gromacs", MDRUN, ["TERM", "KILL", "SUPERVISOR", "TERM", "KILL"], lambda: newest(place))
        assert 0 < max(steps(place)) < STEPS
        with Watched(place, "gromacs", MDRUN) as it:
            assert 0 == it.end(), it.said
        assert results(water) == results(place)
        assert steps(place)[-1] == STEPS

    def test_a_finished_one_stays_finished(self, place, water):
        """Run once more, it goes on from its last step, and writes the same again."""
        shutil.copytree(water, place, dirs_exist_ok=True)
        store = Store(place / "run")
        with store.directory(step=STEPS) as path:
            shutil.copy(water / "run.cpt", path)
        store.close()
        with Watched(place, "gromacs", MDRUN) as it:
            assert 0 == it.end(), it.said
        assert results(water) == results(place)

    @pytest.mark.parametrize("where", ["in the store", "before it was committed"])
    def test_a_cut_checkpoint_is_quarantined_and_the_older_used(self, place, water, where):
        """Found by our digests when it was cut in the store, and by mdrun itself when it was cut before."""
        interrupted(place, "gromacs", MDRUN, ["TERM", "TERM"], lambda: newest(place))
        older, last = steps(place)[-2:]
        store = Store(place / "run")
        if where == "in the store":
            file = store.latest().path / "run.cpt"
            file.write_bytes(file.read_bytes()[:9000])
            bad = last
        else:
            bad, older = last + 1, last
            with store.directory(step=bad) as path:
                (path / "run.cpt").write_bytes((store[last].path / "run.cpt").read_bytes()[:9000])
            store.close()
        with Watched(place, "gromacs", MDRUN) as it:
            assert 0 == it.end(), it.said
        (aside,) = (place / "run" / "quarantine").iterdir()
        assert aside.name.startswith(f"step-{bad:09d}")
        assert f"step-{older:09d}" in (place / "run.log").read_text()  # its command line, told by mdrun
        assert results(water) == results(place)

    def test_a_notice_becomes_the_signal_that_it_knows(self, place):
        """SIGUSR1 would go unheard; mdrun gets SIGTERM, and its last checkpoint is kept."""
        with Watched(place, "gromacs", MDRUN) as it:
            until(lambda: newest(place), "a checkpoint")
            it.send("USR1")
            assert 75 == it.end(), it.said
            assert "Received the TERM signal" in it.said
            assert ["SIGTERM"] == [event["signal"] for event in it.events("handed")]
        assert steps(place) == [newest(place)]

    def test_its_limit_stops_it_early_and_that_is_not_the_end(self, place, water, tmp_path):
        """With -maxh mdrun says 0 although it has not finished; it goes on from there."""
        program = Gromacs(place, place)
        ended, verdict = by_hand(program, MDRUN, place, time_left_s=2.0)
        assert (ended.code, verdict) == (0, "stopped")
        checkpoint = copied(program.checkpoint(), tmp_path / "kept" / "1")
        ended, verdict = by_hand(program, MDRUN, place, checkpoint, 3600.0)
        assert (ended.code, verdict) == (0, "done")
        assert results(water) == results(place)

    def test_how_it_ended_is_told_by_what_it_wrote(self, place, water):
        """Exit code 1 is a stop as well as an error; a structure that was there before proves nothing."""
        shutil.copy(water / "run.gro", place)
        program = Gromacs(place, place)
        ended, verdict = by_hand(program, MDRUN, place, after_s=1.0)
        assert (ended.code, verdict) == (1, "stopped")
        ended, verdict = by_hand(program, [*MDRUN, "-nonsense"], place)
        assert (ended.code, verdict) == (1, "failed")
        (place / "run.tpr").write_bytes((place / "run.tpr").read_bytes()[:2000])
        ended, verdict = by_hand(program, MDRUN, place)
        assert (ended.code > 0, verdict) == (True, "failed")

    def test_outputs_that_are_not_what_they_were_are_refused(self, place, tmp_path):
        """A trajectory shorter than the checkpoint remembers: an older checkpoint may do."""
        program = Gromacs(place, place)
        by_hand(program, MDRUN, place, after_s=1.5)
        checkpoint = copied(program.checkpoint(), tmp_path / "kept" / "1")
        (place / "run.xtc").write_bytes((place / "run.xtc").read_bytes()[:1000])
        ended, verdict = by_hand(program, MDRUN, place, checkpoint)
        assert (ended.code, verdict) == (1, "damaged")


FORMS = [
    (MDRUN, None, [*MDRUN, "-maxh", "1.00000"], 3600.0),
    (["gmx", "mdrun", "-maxh", "0.5"], None, ["gmx", "mdrun", "-maxh", "0.5"], 3600.0),
    (["gmx", "mdrun", "-maxh", "2", "-v"], None, ["gmx", "mdrun", "-v", "-maxh", "1.00000"], 3600.0),
    (["gmx", "mdrun", "-cpi", "-v"], None, ["gmx", "mdrun", "-v"], None),
    (["gmx", "mdrun", "-v"], "state.cpt", ["gmx", "mdrun", "-v", "-cpi", "{}", "-append"], None),
    (["gmx", "mdrun", "-cpi", "old.cpt"], "state.cpt", ["gmx", "mdrun", "-cpi", "{}", "-append"], None),
    (["gmx", "mdrun", "-noappend"], "state.cpt", ["gmx", "mdrun", "-noappend", "-cpi", "{}"], None),
    (["mpirun", "gmx_mpi", "mdrun", "-cpo", "a"], "a.cpt", ["mpirun", "gmx_mpi", "mdrun", "-cpo", "a", "-cpi", "{}", "-append"], None),
    (["mdrun_mpi", "-deffnm", "x"], "x.cpt", ["mdrun_mpi", "-deffnm", "x", "-cpi", "{}", "-append"], None),
]  # fmt: skip


@pytest.mark.parametrize(("command", "kept", "expected", "left_s"), FORMS)
def test_the_command_line_becomes(tmp_path, command, kept, expected, left_s):
    """-cpi with -append where there is a checkpoint, -maxh where there is a limit; the user's own words stay."""
    checkpoint = tmp_path / "kept"
    checkpoint.mkdir()
    if kept:
        (checkpoint / kept).touch()
    words = Gromacs(tmp_path, tmp_path).begin(command, checkpoint if kept else None, left_s)
    assert [word.replace("{}", str(checkpoint / str(kept))) for word in expected] == [*words]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["gmx", "energy"], "the command holds no `mdrun`"),
        (["gmx", "mdrun", "-multidir", "a", "b"], "run each under a supervisor of its own"),
    ],
)
def test_what_it_cannot_look_after_is_refused(tmp_path, command, line):
    """In one line, before anything is started."""
    with pytest.raises(UsageError, match=line):
        Gromacs(tmp_path, tmp_path).begin(command, None, None)


def test_another_runs_checkpoint_is_not_gone_on_from(tmp_path):
    """Two simulations in one directory have two stores; mdrun would take the other's for damage."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "other.cpt").touch()
    with pytest.raises(UsageError, match=r"holds no run\.cpt; another run's\? Give another --run"):
        Gromacs(tmp_path, tmp_path).begin(MDRUN, tmp_path / "kept", None)


def test_without_a_final_structure_its_words_decide(tmp_path):
    """-noconfout writes none."""
    program = Gromacs(tmp_path, tmp_path)
    program.begin(["gmx", "mdrun", "-noconfout"], None, None)
    assert "done" == program.verdict(Ended(0, "Performance: 264.5", told=False))
    early = "Step 12160: Run time exceeded 0.000 hours, will terminate the run within 20 steps"
    assert "stopped" == program.verdict(Ended(0, early, told=False))


def test_a_checkpoint_that_is_being_written_is_none(tmp_path):
    """Its first and its last number, and all between, must be there."""
    file = Path(tmp_path / "run.cpt")
    for size in (0, 3, 4, 100, 5000):
        file.write_bytes(b"\x00\x02\x9f\x29".ljust(size, b"\0")[:size])
        assert step_of(file) is None
    assert step_of(tmp_path / "absent.cpt") is None
