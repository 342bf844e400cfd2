"""GROMACS and LAMMPS under the supervisor: the real programs, killed, end with the bytes of the uninterrupted run."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import Store
from holdfast.apps import gromacs, lammps
from needed import missing
from programs import MDP, TOP, Watched, by_hand, copied, gmx, interrupted, planted, steps
from supervised import until

DOCUMENT = (Path(__file__).parents[2] / "docs" / "apps.md").read_text()
MELT = re.findall(r"^```lammps\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)[0].replace("run 10000", "run 6000")


def water(place):
    """213 SPC/E waters in a box of 1.9 nm, from the files that GROMACS comes with."""
    (place / "md.mdp").write_text(MDP)
    (place / "topol.top").write_text(TOP)
    gmx(*shlex.split("solvate -cs spc216.gro -box 1.9 1.9 1.9 -p topol.top -o water.gro"), place=place)
    gmx(*shlex.split("grompp -f md.mdp -c water.gro -p topol.top -o run.tpr"), place=place)


def melt(place):
    """864 atoms of the melt in docs/apps.md, for fewer steps."""
    (place / "in.melt").write_text(MELT)


def melted(place):
    """The final state, every frame, and of every step the energies that were printed last."""
    energies = dict(re.findall(r"^ +(\d+) +(-?\d+\.\d+ .*?) *$", (place / "thermo.log").read_text(), re.MULTILINE))
    files = [*place.glob("frame.*"), place / "final.data"]
    assert len(files) == 6000 // 500 + 2
    return {path.name: path.read_bytes() for path in files} | energies


def moved(place):
    """Trajectory, energies and final structure."""
    return {name: (place / name).read_bytes() for name in ("run.gro", "run.xtc", "run.edr")}


class Subject(NamedTuple):
    """A program, and what the laws have to know of it."""

    adapter: Callable
    command: list[str]
    input: Callable  # writes what it reads
    results: Callable
    files: tuple[str, ...]  # of its checkpoints
    last: int  # step
    told: str  # where its output names the checkpoint with which it went on
    stopped: int  # its exit code when SIGTERM has stopped it
    wrong: Callable  # makes the directory one in which it fails

    def newest(self, place):
        """Step of the newest checkpoint that it has written, if any."""
        step_of = gromacs.step_of if self.adapter is gromacs.Gromacs else lammps.step_of
        return max((step for name in self.files if (step := step_of(place / name)) is not None), default=None)


MDRUN = shlex.split("gmx mdrun -deffnm run -reprod -ntmpi 1 -ntomp 1 -cpt 0.005")
SUBJECTS = {
    "gromacs": Subject(
        gromacs.Gromacs,
        MDRUN,
        water,
        moved,
        ("run.cpt",),
        6000,
        "run.log",
        1,
        lambda place: (place / "run.tpr").write_bytes((place / "run.tpr").read_bytes()[:2000]),
    ),
    "lammps": Subject(
        lammps.Lammps,
        ["lmp", "-in", "in.melt"],
        melt,
        melted,
        ("ck.a", "ck.b"),
        6000,
        "thermo.log",
        -15,
        lambda place: (place / "in.melt").write_text(MELT.replace("pair_style", "pair_stile")),
    ),
}


@pytest.fixture(scope="module", params=SUBJECTS)
def app(request):
    """The name of one that is installed."""
    if reason := missing(SUBJECTS[request.param].command[0]):
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope="module")
def subject(app):
    return SUBJECTS[app]


@pytest.fixture(scope="module")
def whole(subject, tmp_path_factory):
    """An uninterrupted run of it."""
    place = tmp_path_factory.mktemp("whole")
    subject.input(place)
    subprocess.run(subject.command, check=True, cwd=place, capture_output=True)
    return place


@pytest.fixture
def place(whole, tmp_path):
    for name in ("run.tpr", "in.melt"):
        if (whole / name).exists():
            shutil.copy(whole / name, tmp_path)
    return tmp_path


def test_kills_and_cut_checkpoints_leave_no_trace_in_the_results(app, subject, whole, place):
    """Each file is byte for byte the uninterrupted one. A checkpoint that was cut in the store is found by our digests,
    and one that was cut before by the program itself: both are set aside, and the next older one is used.
    """
    interrupted(place, app, subject.command, ["TERM", "SUPERVISOR", "KILL"], lambda: subject.newest(place))
    older, last = steps(place)[-2:]
    assert 0 < last < subject.last
    (file,) = (path for path in Store(place / "run")[last].path.iterdir() if path.name != "manifest.json")
    data = file.read_bytes()
    planted(place, last + 1, {file.name: data[:5000] + data[-16:] * (app == "lammps")})
    file.write_bytes(data[:5000])
    with Watched(place, app, subject.command) as it:
        assert 0 == it.end(), it.said
    aside = sorted(path.name for path in (place / "run" / "quarantine").iterdir())
    assert [f"step-{step:09d}" for step in (last, last + 1)] == [name[:14] for name in aside]
    assert f"step-{older:09d}" in (place / subject.told).read_text()
    assert subject.results(whole) == subject.results(place)
    assert steps(place)[-1] == subject.last


def test_a_finished_one_stays_finished(app, subject, whole, place):
    """Run once more, it goes on from its last step, and writes the same again."""
    shutil.copytree(whole, place, dirs_exist_ok=True)
    newest = max((whole / name for name in subject.files), key=lambda path: path.stat().st_mtime_ns)
    planted(place, subject.last, {newest.name: newest.read_bytes()})
    with Watched(place, app, subject.command) as it:
        assert 0 == it.end(), it.said
    assert subject.results(whole) == subject.results(place)


def test_its_limit_stops_it_early_and_that_is_not_the_end(subject, whole, place, tmp_path):
    """At its time limit each program says 0 although it has not finished; it goes on from there."""
    program = subject.adapter(place, place)
    for power in range(6):  # until it has come to a checkpoint: on a busy machine it needs more
        limit_s = 2.0**power
        ended, verdict = by_hand(program, subject.command, place, time_left_s=limit_s)
        assert (ended.code, verdict) == (0, "stopped")
        if program.checkpoint() is not None:
            break
    checkpoint = copied(program.checkpoint(), tmp_path / "kept" / "1")
    ended, verdict = by_hand(program, subject.command, place, checkpoint, 3600.0)
    assert (ended.code, verdict) == (0, "done")
    assert subject.results(whole) == subject.results(place)


def test_how_it_ended_is_told_by_what_it_wrote(app, subject, whole, place):
    """An exit code may be a stop as well as an error; results that were there before prove nothing."""
    if app == "gromacs":
        shutil.copy(whole / "run.gro", place)
    program = subject.adapter(place, place)
    ended, verdict = by_hand(program, subject.command, place, enough=lambda: subject.newest(place))
    assert (ended.code, verdict) == (subject.stopped, "stopped")
    subject.wrong(place)
    ended, verdict = by_hand(program, subject.command, place)
    assert (ended.code > 0, verdict) == (True, "failed")


@pytest.mark.parametrize("app", ["gromacs"], indirect=True)
def test_a_notice_becomes_the_signal_that_mdrun_knows(place, app):
    """SIGUSR1 would go unheard; mdrun gets SIGTERM, and its last checkpoint is kept."""
    subject = SUBJECTS[app]
    with Watched(place, app, MDRUN) as it:
        until(lambda: subject.newest(place), "a checkpoint")
        it.send("USR1")
        assert 75 == it.end(), it.said
        assert "Received the TERM signal" in it.said
        assert ["SIGTERM"] == [event["signal"] for event in it.events("handed")]
    assert steps(place) == [subject.newest(place)]


@pytest.mark.parametrize("app", ["gromacs"], indirect=True)
def test_outputs_that_are_not_what_they_were_are_refused(place, app, tmp_path):
    """A trajectory shorter than the checkpoint remembers: an older checkpoint may do."""
    program = gromacs.Gromacs(place, place)
    enough = lambda: (SUBJECTS[app].newest(place) or 0) > 500
    by_hand(program, MDRUN, place, enough=enough)
    checkpoint = copied(program.checkpoint(), tmp_path / "kept" / "1")
    (place / "run.xtc").write_bytes((place / "run.xtc").read_bytes()[:1000])
    ended, verdict = by_hand(program, MDRUN, place, checkpoint)
    assert (ended.code, verdict) == (1, "damaged")


@pytest.mark.parametrize("app", ["lammps"], indirect=True)
def test_a_loop_in_the_script_works_under_a_limit(place, app, tmp_path):
    """`jump SELF` finds its label in the user's script, not in ours that includes it."""
    subject = SUBJECTS[app]
    loop = MELT.replace("run 6000 upto", "label again\nvariable i loop 2\nrun 500\nnext i\njump SELF again")
    assert loop != MELT
    (place / "in.melt").write_text(loop)
    ended, verdict = by_hand(subject.adapter(place, tmp_path), subject.command, place, time_left_s=100.0)
    assert (ended.code, verdict) == (0, "done")
    assert subject.newest(place) == 1000
