"""Links in a run's directory: nothing outside of the run is ever changed by way of one."""

import os
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest

from holdfast import Every, Last, Run, Stopped
from holdfast.errors import HoldfastError, StoreError, UsageError
from holdfast.store import symlinks
from holdfast.store.store import Store
from stores import flip, invoke
from toy import Toy, events

BIG = bytes(range(256)) * 8192  # 2 MiB that do not change: checkpoints share its file


class Frozen:
    def state_dict(self):
        return {"table": BIG}

    def load_state_dict(self, state):
        assert BIG == state["table"]


def train(root, epochs, *, stop=False, **options):
    toy = Toy()
    state = {"toy": toy, "frozen": Frozen()}
    with Run(root, state, every=Every(steps=1), keep=Last(2), background=False, **options) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches(range(2)):
                toy.learn(batch)
                run.log(loss=batch)
                if stop:
                    os.kill(os.getpid(), signal.SIGTERM)


def snapshot(place):
    """Everything at and below `place`: kind, size, time of the last change, number of names, bytes."""
    found = {}
    for folder, folders, names in os.walk(place):
        for path in [folder, *(os.path.join(folder, name) for name in folders + names)]:
            facts = os.lstat(path)
            plain = stat.S_ISREG(facts.st_mode)
            data = Path(path).read_bytes() if plain else b""
            names_of_it = facts.st_nlink if plain else 0
            found[path] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, names_of_it, data)
    return found


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """A run with something under each name of the layout."""
    root = tmp_path_factory.mktemp("lived") / "run"
    train(root, 1)
    train(root, 2)
    newest = root / "checkpoints" / os.readlink(root / "checkpoints/latest")
    flip(newest / "manifest.json")
    train(root, 2)
    Store(root).pin("step-000000003")
    (root / "attempts/.claim-0123").mkdir()
    (root / "attempts/3/step-000000099").mkdir()
    (root / "attempts/3/step-000000099/part").write_bytes(b"part")
    (root / "attempts/3/quarantine-step-000000098-why").mkdir()
    (root / "pins/.0123.part").write_bytes(b"part")
    os.utime(root / "pins/.0123.part", (0, 0))
    return root


PLACES = (
    "run.json",
    "attempts",
    "attempts/.claim-0123",
    "attempts/3",
    "attempts/3/attempt-3.jsonl",
    "attempts/3/step-000000099",
    "attempts/3/quarantine-step-000000098-why",
    "history",
    "history/attempt-1.jsonl",
    "checkpoints/step-000000003",
    "checkpoints/step-000000003/manifest.json",
    "checkpoints/step-000000003/frozen.safetensors",
    "checkpoints/step-000000004-end",
    "checkpoints/latest",
    "pins",
    "pins/step-000000003",
    "pins/.0123.part",
    "quarantine",
    "quarantine/step-000000004-end-damaged",
)


def test_the_list_of_places_is_the_layout(lived):
    """Each is there, in a run of our own; so the next test replaces something."""
    missing = [name for name in PLACES if not os.path.lexists(lived / name)]
    assert [] == missing
    assert {name.split("/")[0] for name in PLACES} | {"checkpoints"} == set(os.listdir(lived))


def replaced(place, outside, *, foreign):
    """Put a link in the place of what is there, to a copy of it, or to something else, with more beside it."""
    outside.mkdir()
    target = outside / "target"
    if place.is_dir() or foreign:
        if foreign or place.is_symlink():
            target.mkdir()
        else:
            shutil.copytree(place, target, symlinks=True)
        (target / "theirs.txt").write_bytes(b"theirs")
        (target / "folder").mkdir()
        (target / "folder/theirs.txt").write_bytes(b"theirs")
        if place.name == "3":
            (target / "attempt-3.jsonl.old").write_bytes(b"theirs")
    else:
        shutil.copy2(place, target)
    (shutil.rmtree if place.is_dir() and not place.is_symlink() else os.unlink)(place)
    place.symlink_to(target)
    old = time.time() - 10**6  # what is changed now is seen
    for folder, folders, names in os.walk(outside):
        for name in folders + names:
            os.utime(os.path.join(folder, name), (old, old), follow_symlinks=False)


def acts(root):
    """A cycle of runs: they train, save and prune, stop, resume, set a damaged one aside;
    people pin, prune and look."""

    def stopped():
        with pytest.raises(Stopped):
            train(root, 4, stop=True)

    def damaged():
        newest = Store(root).latest().path
        if newest.is_symlink():
            return
        shutil.copy2(newest / "manifest.json", newest / "copy")
        os.replace(newest / "copy", newest / "manifest.json")  # not the one outside
        flip(newest / "manifest.json")
        train(root, 5)

    yield lambda: train(root, 3)
    yield stopped
    yield lambda: train(root, 4)
    yield damaged
    yield lambda: Store(root).pin(Store(root).latest().path.name)
    for checkpoint in Store(root).checkpoints():
        yield lambda name=checkpoint.path.name: Store(root).pin(name)
        yield lambda name=checkpoint.path.name: Store(root).unpin(name)
    for words in (
        "prune RUN --keep Last(1)",
        "pin RUN --step latest",
        "verify RUN",
        "hold RUN",
        "release RUN",
        "ls RUN",
    ):
        yield lambda words=words: invoke(*(root if word == "RUN" else word for word in words.split()))
    yield lambda: train(root, 6, take_over=True, allow_fresh=True)


@pytest.mark.parametrize("foreign", [False, True], ids=["moved away", "something else"])
def test_nothing_outside_changes_by_way_of_a_link(foreign, lived, tmp_path):
    """Every name of the layout, replaced by a link.
    What is done works, or is refused with one line that names a path."""
    worked = 0
    for number, name in enumerate(PLACES):
        root, outside = tmp_path / str(number) / "run", tmp_path / str(number) / "outside"
        shutil.copytree(lived, root, symlinks=True)
        replaced(root / name, outside, foreign=foreign)
        before = snapshot(outside)
        done, refusals = 0, []
        for act in acts(root):
            try:
                act()
            except HoldfastError as error:
                refusals.append(str(error))
            done += 1
            assert before == snapshot(outside), name
        assert done >= 13, name
        assert all(str(root) in line and len(line.splitlines()) == 1 for line in refusals), (name, refusals)
        worked += done - len(refusals)
    assert worked > 3 * len(PLACES)


@pytest.mark.parametrize("name", ["attempts", "attempts/3", "history", "quarantine", "pins"])
def test_a_link_in_the_place_of_a_directory_that_is_written_in_is_refused(name, lived, tmp_path):
    """By name, with the target and with what to do; and before anything is begun."""
    root = tmp_path / "run"
    shutil.copytree(lived, root, symlinks=True)
    replaced(root / name, tmp_path / "outside", foreign=False)
    before = snapshot(root)
    with pytest.raises(UsageError, match=f"{root / name} is a symbolic link to {tmp_path}/outside/target: .*remove"):
        train(root, 3)
    if name == "pins":
        for change in (Store(root).pin, Store(root).unpin):
            with pytest.raises(UsageError, match="pins is a symbolic link"):
                change("step-000000003")
    assert before == snapshot(root)


@pytest.mark.parametrize("name", ["attempts", "attempts/1", "quarantine", "checkpoints"])
def test_a_link_that_takes_the_place_of_a_directory_while_the_run_lives_is_refused(name, tmp_path):
    store = Store(tmp_path / "run")
    store.save({"step": 1}, step=1)
    store.save({"step": 2}, step=2)
    replaced(store.root / name, tmp_path / "outside", foreign=False)
    if name == "checkpoints":
        os.unlink(store.root / name)
        (store.root / name).symlink_to("nowhere")
    before = snapshot(tmp_path / "outside")
    with pytest.raises(UsageError, match=f"{store.root / name} is a "):
        if name == "quarantine":
            store.quarantine(store.latest(), "why")
        else:
            store.save({"step": 3}, step=3)
    assert before == snapshot(tmp_path / "outside")


def test_a_checkpoint_that_is_a_link_is_read_and_shares_nothing_and_is_not_pinned(tmp_path):
    """Its files belong to another run: they get no further names, and no new bytes."""
    theirs, mine = Store(tmp_path / "theirs"), Store(tmp_path / "mine")
    for step in (1, 2):
        theirs.save({"big": BIG}, step=step)
    mine.save({"big": b""}, step=1)
    os.symlink(theirs[2].path, mine.root / "checkpoints" / theirs[2].path.name)
    mine.parent = theirs[2].path.name
    before = snapshot(theirs.root)
    assert {"big": BIG} == mine.load()
    with pytest.raises(UsageError, match=r"step-000000002 is a symbolic link to .*: its files lie in another run"):
        mine.pin(2)
    mine.save({"big": BIG}, step=3)
    assert 1 == os.stat(mine[3].path / "state.safetensors").st_nlink
    mine.keep = Last(1)
    mine.save({"big": BIG}, step=4)
    assert ["step-000000004"] == [checkpoint.name for checkpoint in mine.checkpoints()]
    assert before == snapshot(theirs.root)


# What may be a link ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "checkpoints"])
def test_a_run_and_its_checkpoints_may_lie_elsewhere(name, lived, tmp_path):
    """The run goes on there as ever: it saves, prunes, sets aside what is damaged;
    what is not its own stays as it is."""
    root, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(lived, root, symlinks=True)
    replaced(root / name, outside, foreign=False)
    theirs = {path: facts for path, facts in snapshot(outside).items() if "theirs" in path or "folder" in path}
    assert len(theirs) >= 3
    codes = [
        told.exit_code for told in [act() for act in acts(root)] if told is not None and hasattr(told, "exit_code")
    ]
    assert [0] * 6 == codes
    now = snapshot(outside)
    assert theirs == {path: now[path] for path in theirs}
    assert os.path.islink(root / name)
    assert 12 == events(root, "saved")[-1]["step"]
    assert {"step-000000012-end"} < set(os.listdir(outside / "target" / ("" if name else "checkpoints")))


def test_checkpoints_that_are_linked_to_nothing_are_told(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").symlink_to("gone")
    with pytest.raises(UsageError, match="run/checkpoints is a link to gone, which cannot be reached"):
        Store(tmp_path / "run").save({"w": 1}, step=1)
    (tmp_path / "run/gone").write_bytes(b"")
    with pytest.raises(UsageError, match="run/checkpoints is a link to gone, which is no directory"):
        Store(tmp_path / "run").save({"w": 1}, step=1)


def test_checkpoints_on_another_file_system_say_what_to_link(tmp_path):
    """Nothing can be renamed from one to the other."""
    shared = "/dev/shm"
    if not os.access(shared, os.W_OK) or os.stat(shared).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("no second file system here")
    place = os.path.join(shared, f"holdfast-places-{os.getpid()}")
    os.mkdir(place)
    try:
        (tmp_path / "run").mkdir()
        (tmp_path / "run/checkpoints").symlink_to(place)
        with pytest.raises(StoreError, match=r"lie on another file system than its attempts.*link the run's whole"):
            Store(tmp_path / "run").save({"w": 1}, step=1)
        assert [] == os.listdir(place)
    finally:
        shutil.rmtree(place)


ALICE, BOB, ROOT = 1001, 1002, 0


@pytest.mark.parametrize(
    ("link", "target", "run", "user", "follows"),
    [
        (ALICE, ALICE, ALICE, ALICE, True),
        (ALICE, BOB, ALICE, ALICE, False),  # another user's directory
        (BOB, ALICE, ALICE, ALICE, False),  # perhaps another run's of hers
        (ALICE, ALICE, ALICE, BOB, True),  # he goes on with a colleague's run
        (ALICE, ALICE, BOB, BOB, False),
        (BOB, BOB, ALICE, BOB, True),
        (ALICE, ALICE, ALICE, ROOT, True),  # root goes on with hers, as in a container
        (ALICE, ROOT, ALICE, ROOT, False),  # her link leads root into root's directory
        (ROOT, ROOT, ALICE, ROOT, True),
        (ROOT, BOB, ALICE, ROOT, False),
    ],
)
def test_who_follows_which_link(link, target, run, user, follows):
    assert follows == symlinks.may_follow_link(link, target, run, user)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_checkpoints_that_are_linked_to_another_users_directory_are_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", BOB, BOB)
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match=f"theirs, a directory of another user .uid {BOB}."):
        Store(tmp_path / "run").save({"w": 1}, step=1)
    assert [] == os.listdir(tmp_path / "theirs")
