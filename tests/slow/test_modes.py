"""Modes: what a run creates has the modes that umask and directories ask for; a private run is its user's alone."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import Every, Last, Run, owner
from holdfast.store.store import Store
from stores import flip, invoke
from supervised import Supervised
from toy import Toy, script

GROUP, ANN, BOB = 64_242, 64_001, 64_002
BIG = bytes(4 << 20)  # written past the page cache, and then linked
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")


class Frozen:
    def state_dict(self):
        return {"table": BIG}

    def load_state_dict(self, state):
        assert state["table"] == BIG


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def train(root, epochs, **options):
    toy = Toy()
    with Run(root, {"toy": toy, "frozen": Frozen()}, every=Every(steps=1), keep=Last(2), **options) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches(range(3)):
                toy.learn(batch)
                run.log(loss=batch)
    return toy.value


def lived(root, private=False, **options):
    """A run that was begun, damaged, resumed, copied and pinned."""
    train(root, 1, private=private)
    flip(root / "checkpoints" / os.readlink(root / "checkpoints/latest") / "manifest.json")
    train(root, 2, private=private, **options)
    assert len(list((root / "quarantine").iterdir())) == 1
    assert invoke("pin", root, "--step", "latest").exit_code == 0
    assert invoke("hold", root).exit_code == 0


def modes(*places):
    """{path: mode} of all that is there, links apart."""
    found = {}
    for place in places:
        for path in (place, *sorted(place.rglob("*"))):
            if not path.is_symlink():
                found[path] = stat.S_IMODE(path.stat().st_mode)
    assert any(stat.S_ISREG(path.stat().st_mode) for path in found)
    return found


def odd(found, file, folder):
    """Those with another mode."""
    return {str(path): oct(mode) for path, mode in found.items() if mode != (folder if path.is_dir() else file)}


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o007, 0o027, 0o077], ids=oct)
def test_what_a_run_creates_has_the_modes_of_the_umask(tmp_path, mask):
    """Files have 0666 less the umask, directories 0777 less it: run, copies, board, pins and quarantine."""
    with umask(mask):
        lived(tmp_path / "run", mirror=tmp_path / "mirror", board=True)
    found = modes(tmp_path / "run", tmp_path / "mirror", tmp_path / "run-board")
    assert odd(found, 0o666 & ~mask, 0o777 & ~mask) == {}


@needs_root
def test_a_directory_hands_on_its_group(tmp_path):
    """Below a directory with the setgid bit everything has its group, and directories have the bit."""
    for name in ("runs", "copies"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, -1, GROUP)
        (tmp_path / name).chmod(0o2775)
    with umask(0o002):
        lived(tmp_path / "runs/run", mirror=tmp_path / "copies/run", board=True)
    found = modes(tmp_path / "runs", tmp_path / "copies")
    assert {path.stat().st_gid for path in found} == {GROUP}
    assert odd(found, 0o664, 0o2775) == {}


PRIVATE = (0o600, 0o700)


def test_a_private_run_is_for_its_user_alone(tmp_path):
    """Whatever the umask, also what other commands add to it later: nothing has a right for anybody else."""
    with umask(0):
        lived(tmp_path / "run", mirror=tmp_path / "mirror", board=True, private=True)
        train(tmp_path / "run", 3)  # the run's directory says that it is private
        Store(tmp_path / "run").pin(9)
    assert odd(modes(tmp_path / "run", tmp_path / "mirror", tmp_path / "run-board"), *PRIVATE) == {}


def test_a_run_that_becomes_private_is_closed(tmp_path):
    """What was written before is closed, too: the run, its checkpoints elsewhere, its copies, its board."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "outside").write_bytes(b"")
    (tmp_path / "outside").chmod(0o644)
    with umask(0o022):
        lived(tmp_path / "run", mirror=tmp_path / "mirror", board=True)
        (tmp_path / "run/mine").symlink_to(tmp_path / "outside")
        train(tmp_path / "run", 3, mirror=tmp_path / "mirror", board=True, private=True)
    found = modes(tmp_path / "run", tmp_path / "elsewhere", tmp_path / "mirror", tmp_path / "run-board")
    assert odd(found, *PRIVATE) == {}
    assert stat.S_IMODE((tmp_path / "outside").stat().st_mode) == 0o644


def test_a_run_that_is_opened_again_goes_by_the_umask(tmp_path):
    """Its directory's mode decides: chmod opens it for what comes."""
    with umask(0o022):
        train(tmp_path / "run", 1, private=True)
        (tmp_path / "run").chmod(0o755)
        train(tmp_path / "run", 2)
    newest = tmp_path / "run/checkpoints" / os.readlink(tmp_path / "run/checkpoints/latest")
    assert stat.S_IMODE((newest / "manifest.json").stat().st_mode) == 0o644


def test_a_supervisors_files_are_private_as_the_run_is(tmp_path):
    """Its journal and what it writes later; the user's own files in that directory keep their modes."""
    body = """
    with new_run(RUN, toy, private=True) as run:
        for step in run.steps(3):
            toy.learn(step)
    """
    file = script(tmp_path, body)
    (tmp_path / "work").mkdir()
    (tmp_path / "work/mine").write_bytes(b"")
    with umask(0):
        (tmp_path / "work/mine").chmod(0o644)
        for _ in range(2):
            with Supervised(tmp_path, [sys.executable, file], "--run", tmp_path / "work") as command:
                assert command.process.wait(60) == 0
    found = modes(tmp_path / "work")
    assert found.pop(tmp_path / "work/mine") == 0o644
    del found[tmp_path / "work"]
    assert odd(found, *PRIVATE) == {}


TRAINS = """
def train(root, epochs):
    toy = Toy()
    random.seed(0)
    with Run(root, {"toy": toy, "still": [bytes(1 << 20)]}, every=Every(steps=1), keep=Last(2)) as run:
        for epoch in run.epochs(epochs):
            for batch in run.batches(range(3)):
                toy.learn(batch)
    return toy.value

train(f"{words[0]}-warm-{uid}-{words[1]}", 1)
train(f"{words[0]}-warm-{uid}-{words[1]}", 2)
become()
print(train(words[0], int(words[1])))
"""
AS_USER = """
import os, random, sys
from holdfast import Run, Every, Last, Store
from toy import Toy
uid, group, mask, *words = sys.argv[1:]

def become():  # after everything was imported: Python itself may lie where other users may not go
    os.setgroups([int(group)])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    os.umask(int(mask))
"""


def as_user(uid, place, code, *words, mask=0o002, within=()):
    """What a process says that becomes another user, of the group, where the code says `become()`."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [*within, sys.executable, "-c", AS_USER + code, *map(str, (uid, GROUP, mask, *words))],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.fixture
def shared():
    """A directory of a group, that other users can reach: pytest's own are for this user alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        place = Path(folder, "shared")
        place.mkdir()
        os.chown(place, -1, GROUP)
        place.chmod(0o2775)
        yield place


@needs_root
def test_a_colleague_of_the_group_goes_on_with_a_run(shared):
    """With a umask of 002 two users take turns at one run; it ends with the bits of one user's run."""
    alone = as_user(ANN, shared, TRAINS, shared / "alone", 3)
    assert alone.returncode == 0, alone.stderr
    for turn, user in enumerate((ANN, BOB, ANN)):
        done = as_user(user, shared, TRAINS, shared / "run", turn + 1)
        assert done.returncode == 0, done.stderr
    assert done.stdout == alone.stdout


@needs_root
def test_a_colleague_who_may_only_read_reads(shared):
    """With a umask of 022 a colleague looks at the run, and is refused with one line as its next writer."""
    assert as_user(ANN, shared, TRAINS, shared / "run", 1, mask=0o022).returncode == 0
    reads = as_user(
        BOB, shared, "Store(words[0]).load()\nbecome()\nprint(Store(words[0]).load()['toy'])", shared / "run"
    )
    assert reads.returncode == 0, reads.stderr
    refused = as_user(BOB, shared, TRAINS, shared / "run", 2)
    assert "cannot begin: Permission denied" in refused.stderr.splitlines()[-1]


@needs_root
def test_another_users_directory_is_not_made_private(shared):
    """It is refused with one line, before anything is written."""
    (shared / "run").mkdir()
    os.chown(shared / "run", ANN, GROUP)
    (shared / "run").chmod(0o777)
    code = "for warm in ('-warm', ''):\n with Run(words[0] + warm, {}, private=True): pass\n if warm: become()"
    done = as_user(BOB, shared, code, shared / "run")
    assert "another user's directory" in done.stderr
    assert list((shared / "run").iterdir()) == []


HIDES = """
import json, subprocess
from holdfast import owner
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
owner.describe_this_process()
become()
found = json.loads(words[0])
print(owner._process(found["pid"]), owner.proven_gone(found, lambda: 0.0))
print(owner.proven_gone(found | {"pid": 4_000_000}, lambda: 0.0))
"""


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_process_that_proc_hides_is_not_proven_dead(shared):
    """Clusters mount /proc so that it shows one's own processes only: a colleague's living attempt is refused."""
    told = as_user(BOB, shared, HIDES, json.dumps(owner.describe_this_process()), within=("unshare", "-m"))
    assert told.stdout.splitlines() == ["None False", "True"], told.stderr
