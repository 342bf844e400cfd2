"""The laws of the store."""

import errno
import itertools
import math
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults import FULL, counting, door, failing, links, requests, scratched
from holdfast import bulk, disk, journal, retention, scan
from holdfast.errors import Damaged, NoSpace, NotFound, StoreError, UsageError
from holdfast.rules import Best, Every, Last, Within, parts
from holdfast.store import attempt as attempts
from holdfast.store import checkpoint_index, claiming, format, source
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.store import ManifestFields, Store
from kept import bits
from stores import flip, having, in_a_child, listing, put, steps, whole


@pytest.fixture
def root():
    with scratched("store") as base:
        yield base / "run"


# -- saving and loading ---------------------------------------------------------------------------------------------


def test_what_was_saved_is_loaded(root):
    """The newest, a step's, or one by its name; in a new process as in this one."""
    store = having(root, 1, 20, 3)
    for reader in (store, Store(root)):
        assert steps(reader) == [1, 3, 20]
        assert reader.latest().step == 20
        assert whole(reader.load(), 20)
        assert whole(reader.load(3), 3)
        assert whole(reader["step-000000001"].load(), 1)


def test_the_latest_is_found_without_a_look_at_older_ones(root, monkeypatch):
    """There may be many, and some that may not be read. A directory that is no checkpoint is passed over."""
    store, asked, look = having(root, 1, 2, 3), [], checkpoint_index.is_committed
    monkeypatch.setattr(
        checkpoint_index, "is_committed", lambda folder, name: asked.append(name.step) or look(folder, name)
    )
    assert (3, [3]) == (store.latest().step, asked)
    (root / "checkpoints" / "step-000000009").mkdir()
    assert store.latest().step == 3


def test_the_owner_finds_checkpoints_from_the_newest_on(root):
    """In the order of their steps and phases, however long their names are; other names are passed over."""
    folder = root / "checkpoints"
    names = [
        format.CheckpointName(step, phase)
        for step in (0, 7, 10**9 - 1, 10**9, 10**12, 10**17)
        for phase in format.PHASES
    ]
    for place in [*map(str, names), "latest-end", "step-7", "step-000000008", "zzzzzzzzzzzzzzzzzzzzzzzz"]:
        (folder / place).mkdir(parents=True)
        if place not in ("step-000000008", "zzzzzzzzzzzzzzzzzzzzzzzz"):
            (folder / place / format.MANIFEST).touch()
    assert [*map(str, reversed(names))] == [each.path.name for each in Store(root).index.newest_first()]


def test_a_checkpoint_that_is_not_there_is_not_found(root):
    """Asking for it says which there are; an empty or absent store has none."""
    store = Store(root)
    for ask in (store.load, store.latest, lambda: store[1], lambda: store.load("best")):
        with pytest.raises(NotFound):
            ask()
    assert store.checkpoints() == []
    assert not root.exists()  # reading makes nothing
    put(store, 1)
    with pytest.raises(NotFound, match="step-000000001"):
        store[2]


def test_what_is_inside_a_run_is_no_run(root):
    """A checkpoint's directory, also by a link, and that of all checkpoints:
    what to give is said, nothing is written."""
    having(root, 1, 2)
    before = listing(root)
    for inside in ("checkpoints/step-000000002", "checkpoints/latest", "checkpoints"):
        with pytest.raises(UsageError, match=f"give (its|the) run's directory, {root}") as refusal:
            Store(root / inside)
        assert "\n" not in str(refusal.value)
    assert before == listing(root)


def test_a_checkpoint_that_was_taken_out_of_its_run_is_no_run(root):
    """What reads it is said; a directory with a manifest of somebody else's may become a run."""
    put(Store(root), 1)
    alone = root.with_name("alone")
    shutil.copytree(root / "checkpoints/step-000000001", alone)
    with pytest.raises(UsageError, match=r"Checkpoint\('") as refusal:
        Store(alone)
    assert whole(eval(str(refusal.value).rpartition(" ")[2], {"Checkpoint": Checkpoint}).load(), 1)
    other = root.with_name("other")
    other.mkdir()
    (other / "manifest.json").write_text('{"name": "an app"}')
    put(Store(other), 1)
    assert whole(Store(other).load(), 1)


def test_the_end_of_an_epoch_comes_after_its_last_step(root):
    """Both may be there under one step number; the end is the newer."""
    store = Store(root)
    for phase in ("end", "step"):
        store.save({"phase": phase}, step=7, facts=ManifestFields(phase=phase, epoch=2))
    assert [checkpoint.name for checkpoint in store.checkpoints()] == ["step-000000007", "step-000000007-end"]
    assert store.load() == store.load(7) == {"phase": "end"}
    assert store.load("step-000000007") == {"phase": "step"}


def test_a_committed_step_is_immutable(root):
    """Saving it again is the caller's mistake, and leaves it as it was."""
    store = having(root, 1)
    before = listing(root)
    with pytest.raises(UsageError, match="already committed"):
        store.save({"other": 1}, step=1)
    with pytest.raises(UsageError, match="already committed"), store.directory(step=1):
        raise AssertionError
    assert listing(root) == before


def test_what_cannot_be_saved_leaves_no_trace(root):
    """A step that is no whole number, a state that nobody can encode: refused before the run is claimed."""
    for step in (-1, 10**18, 1.0, "1", True, None):
        with pytest.raises(UsageError, match="step"):
            Store(root).save({}, step=step)
    with pytest.raises(UsageError, match="register"):
        Store(root).save({"f": object()}, step=1)
    assert not root.exists()


def test_metrics_and_note_are_kept(root):
    """Numbers of every kind, not finite ones too."""
    metrics = {"loss": np.float32(0.5), "n": 3, "bad": math.nan, "top": math.inf}
    checkpoint = Store(root).save({}, step=1, metrics=metrics, note="as is")
    found = Store(root)[1]
    assert found.metrics["loss"] == 0.5
    assert found.metrics["n"] == 3
    assert math.isnan(found.metrics["bad"])
    assert found.metrics["top"] == math.inf
    assert found.manifest.note == "as is"
    assert found.path == checkpoint.path
    with pytest.raises(UsageError, match="not one number"):
        Store(root, take_over=True).save({}, step=2, metrics={"loss": "low"})
    assert sorted(path.name for path in root.glob("attempts/2/*")) == ["attempt-2.jsonl"]


def test_best_is_what_the_rule_ranks_first(root):
    """Also for a reader who was not told the rule; NaN ranks nowhere, and of equals the older one leads."""
    for direction, best in ((max, 3), (min, 2)):
        place = root / direction.__name__
        store = Store(place, keep=Best("acc", direction) | Last(9))
        for step, acc in enumerate((0.5, 0.1, 0.9, math.nan, 0.9, 0.1), 1):
            store.save({"step": step}, step=step, metrics={"acc": acc})
        assert Store(place).load("best") == {"step": best}
        assert os.readlink(place / "checkpoints" / "best") == f"step-{best:09d}"


def test_best_passes_over_a_damaged_manifest(root):
    """One old manifest that cannot be read does not hide the others' ranks."""
    store = having(root, 1, 2, 3, keep=Best("acc", max) | Last(9))
    (store[1].path / "manifest.json").write_bytes(b"{}")
    assert whole(Store(root).load("best"), 2)


def test_links_for_people_are_relative_and_lead_somewhere(root):
    """`latest` and `best` follow saves, prunes and quarantines; a copy's links stay in the copy."""
    store = having(root, 1, 2, 3, 4, keep=Last(2) | Best("acc", max))
    links = {link: os.readlink(root / "checkpoints" / link) for link in ("latest", "best")}
    assert links == {"latest": "step-000000004", "best": "step-000000002"}
    store.prune(Last(2))
    assert os.readlink(root / "checkpoints" / "best") == "step-000000003"
    store.quarantine(store[4], "tried")
    assert os.readlink(root / "checkpoints" / "latest") == "step-000000003"
    store.quarantine(store[3], "tried")
    assert listing(root / "checkpoints") == {}


def test_a_damaged_newest_is_passed_over(root):
    """`load` falls back to the next older valid one; a step that was asked for by number is not replaced."""
    store = having(root, 1, 2)
    (store[2].path / "model.safetensors").write_bytes(b"")
    assert whole(store.load(), 1)
    with pytest.raises(Damaged):
        store.load(2)
    (store[1].path / "model.safetensors").write_bytes(b"")
    with pytest.raises(Damaged, match="step-000000002"):
        store.load()


# -- one owner ------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_by_name(root):
    """While the first may live; reading is free. `take_over` says that it does not. A closed store makes way."""
    first, second = Store(root), Store(root)
    put(first, 1)
    assert whole(second.load(), 1)
    with pytest.raises(UsageError, match=f"pid {os.getpid()}"):
        put(second, 2)
    having(root, 2, take_over=True).close()
    having(root, 3)
    assert steps(first) == [1, 2, 3]


@pytest.mark.parametrize("ended", [False, True])
def test_an_attempt_that_began_after_the_journals_were_listed_is_known_all_the_same(root, monkeypatch, ended):
    """A living one is told by its name, and one that has ended is in nobody's way."""
    having(root, 1).close()
    others, listed = [], journal.logs

    def logs(place):
        found = listed(place)
        if not others:
            others.append(None)
            others[0] = claiming.claim(root)
            if ended:
                others[0].close("end", step=0)
        return found

    monkeypatch.setattr(journal, "logs", logs)
    if ended:
        mine = claiming.claim(root)
        assert [1, 2] == [log.attempt for log in mine.earlier]
        assert mine.number == 3
    else:
        with pytest.raises(UsageError, match=rf"attempt 2 .* pid {os.getpid()}"):
            claiming.claim(root)


# -- directories ----------------------------------------------------------------------------------------------------


def test_a_directory_is_committed_whole_or_not_at_all(root):
    """Whatever files the block writes; when it raises, nothing is there."""
    store = Store(root)
    with store.directory(step=1, metrics={"acc": 1}, note="mine") as path:
        (path / "a" / "b").mkdir(parents=True)
        (path / "a" / "b" / "c.pt").write_bytes(b"c" * 10)
        (path / "d").write_bytes(b"")
    assert (store[1].path / "a" / "b" / "c.pt").read_bytes() == b"c" * 10
    assert list(store[1].manifest.files) == ["d", "a/b/c.pt"]
    assert store[1].metrics == {"acc": 1}
    assert not list(store[1].problems())
    before = listing(root)
    with pytest.raises(ZeroDivisionError), store.directory(step=2) as path:
        (path / "half").write_bytes(b"h")
        raise ZeroDivisionError
    assert listing(root) == before


def test_a_directory_holds_plain_files_only(root):
    """Links lead out, and the manifest is not the caller's: the save is refused, the store as before."""
    store = having(root, 1)
    before = listing(root)
    for spoil in (
        lambda path: (path / "link").symlink_to("/etc/passwd"),
        lambda path: (path / "folder").symlink_to("/etc"),
        lambda path: (path / "manifest.json").write_text("{}"),
        lambda path: (path / "back\\slash").write_text(""),
    ):
        with pytest.raises(UsageError), store.directory(step=2) as path:
            spoil(path)
        assert listing(root) == before


# -- retention ------------------------------------------------------------------------------------------------------


def test_the_rule_is_applied_after_each_save(root):
    """And the newest always stays, whatever the rule."""
    store = having(root, *range(1, 13), keep=Last(2) | Best("acc", max) | Every(steps=5))
    assert steps(store) == [1, 2, 5, 10, 11, 12]
    store.prune(Within(bytes=1))
    assert steps(store) == [12]


def test_pins_outlive_rules(root):
    """A pin keeps a checkpoint for ever; without it the rule has its way."""
    store = having(root, 1, 2, 3)
    store.pin(1)
    store.pin(1)
    assert [checkpoint.step for checkpoint in store.prunable(Last(1))] == [2]
    store.prune(Last(1))
    assert steps(store) == [1, 3]
    store.unpin(1)
    store.unpin(1)
    store.prune(Last(1))
    assert steps(store) == [3]
    with pytest.raises(NotFound):
        store.pin(1)


def test_nothing_goes_while_the_newest_is_not_whole(root):
    """A prune reads its successor back from the medium first."""
    store = having(root, 1, 2)
    flip(store[2].path / "model.safetensors")
    before = listing(root)
    with pytest.raises(Damaged, match="no older checkpoint was removed"):
        store.prune(Last(1))
    assert listing(root) == before


def test_a_prune_forgets_what_it_thought_before_it_was_owner(root):
    """Between the look and the claim another owner moved the newest aside: what is newest now stays."""
    first, second = Store(root), Store(root, take_over=True)
    for step in (1, 2, 3):
        put(first, step)
    claim = second.claim

    def late() -> Any:
        if second.attempt is None:
            first.quarantine(first[3], "late")
        return claim()

    second.claim = late
    second.prune(Last(1))
    assert steps(second) == [2]


def test_what_an_own_failure_left_blocks_nothing(root):
    """Halves in the attempt's own room, from a save, a prune or a link that was interrupted, make way."""
    store = having(root, 1, 2, keep=Last(1))
    store.keep = None
    put(store, 3)
    room = store.attempt.room
    for name in ("deleting-step-000000002", "step-000000004"):
        (room / name).mkdir()
        (room / name / "half").write_bytes(b"h")
    (room / "link-latest").symlink_to("nowhere")
    store.keep = Last(1)
    put(store, 4)
    assert steps(store) == [4]
    assert os.readlink(root / "checkpoints" / "latest") == "step-000000004"
    (room / "link-latest").symlink_to("nowhere")
    store.quarantine(store[4], "tried")
    assert [path.name for path in room.iterdir()] == [store.attempt.journal.name]
    assert not list(store.checkpoints())
    with pytest.raises(NotFound):
        store.load()
    assert list(root.glob("checkpoints/*")) == []


@settings(deadline=None)
@given(
    order=st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True),
    keep=st.sampled_from([Last(1), Last(2), Best("acc", max), Best("acc", min), Every(steps=10), Within(bytes=1)]),
    files=st.booleans(),
)
def test_what_was_just_saved_is_there(order, keep, files):
    """In whatever order the steps come and whatever the rule keeps: it goes with a later save at the earliest."""
    with scratched("order") as base:
        store = Store(base / "run", keep=keep)
        for step in order:
            if files:
                with store.directory(step=step, metrics={"acc": abs(step - 9)}) as path:
                    (path / "x").write_text(str(step))
                assert (store[step].path / "x").read_text() == str(step)
            else:
                put(store, step)
                assert whole(store.load(step), step)
            assert len(store.checkpoints()) <= 2 + len(retention.keep(store.facts(), keep))
        assert step in steps(Store(base / "run"))


def test_nothing_goes_while_what_was_just_saved_is_not_whole(root, monkeypatch):
    """Also when it is not the newest: both are read back from the medium."""
    store = having(root, 10, 5, keep=Last(1))
    point = store.update_links
    shard = root / "checkpoints" / "step-000000006" / "model.safetensors"
    monkeypatch.setattr(store, "update_links", lambda: (shard.write_bytes(b""), point()))
    with pytest.raises(Damaged, match="no older checkpoint was removed"):
        put(store, 6)
    assert steps(store) == [5, 6, 10]


def test_a_manifest_is_decoded_once(root, monkeypatch):
    """A save decodes its own and, before something goes, what it reads back; not those of all the others again."""
    decoded: list[str] = []
    decode = format.decode

    def counted(data: bytes, path: Path, *key: Any) -> Any:
        decoded.append(path.parent.name)
        return decode(data, path, *key)

    monkeypatch.setattr(format, "decode", counted)
    for keep in (Last(11), Last(9) | Best("acc", max)):
        store = Store(root, keep=keep, take_over=True)
        begin = 1 + max([0, *steps(store)])
        put(store, begin)
        for step in range(begin + 1, begin + 30):
            decoded.clear()
            put(store, step)
            name = f"step-{step:09d}"
            assert [name] * len(decoded) == decoded
            assert len(decoded) <= 2
        decoded.clear()
        names = [checkpoint.path.name for checkpoint in store.checkpoints()]
        assert [facts.name for facts in store.facts()] == names
        store.best() if Best in map(type, parts(keep)) else store.prunable(Last(1))
        assert [] == decoded
        assert [*store.index._known] == names


def test_what_is_remembered_of_a_manifest_is_forgotten_with_it(root):
    """One that was damaged, moved away or copied over another is looked at again; a pin counts at once."""
    store = having(root, 1, 2, 3)
    assert [facts.step for facts in store.facts()] == [1, 2, 3]
    (store[2].path / "manifest.json").write_bytes(b"{}")
    assert [facts.step for facts in store.facts()] == [1, 3]
    store[3].path.rename(root / "checkpoints" / "step-000000004")  # what lies in another's place is no fact of either
    assert [facts.step for facts in store.facts()] == [1]
    assert store.prunable(Last(1)) == []
    Store(root).pin(1)
    assert [facts.pinned for facts in store.facts()] == [True]


# -- threads --------------------------------------------------------------------------------------------------------


def test_a_forked_child_is_refused_while_its_parent_saves(root):
    """It does not wait for ever for a thread that it does not have."""
    store = having(root, 1)
    inside, go_on = threading.Event(), threading.Event()

    def hold(call: Any, perform: Callable[[], Any]) -> Any:
        inside.set()
        assert go_on.wait(60)
        return perform()

    def save() -> None:
        with door(hold):
            put(store, 2)

    thread = threading.Thread(target=save)
    thread.start()
    assert inside.wait(60)

    def law() -> None:
        for write in (lambda: put(store, 3), store.close, lambda: store.prune(Last(1))):
            with pytest.raises(UsageError):
                write()

    assert 0 == in_a_child(law)
    go_on.set()
    thread.join()
    assert steps(store) == [1, 2]


def test_who_is_stuck_at_one_manifest_stops_nobody_else(root, monkeypatch):
    """Reading another checkpoint goes on; Python 3.11's cached_property would not let it."""
    store = having(root, 1, 2)
    go_on, stuck, whole_of = threading.Event(), threading.Event(), source.read_whole

    def slow(path: Path, *most: int) -> bytes:
        if path.parent == store[1].path:
            stuck.set()
            assert go_on.wait(60)
        return whole_of(path, *most)

    monkeypatch.setattr(source, "read_whole", slow)
    first = threading.Thread(target=lambda: store[1].manifest)
    second = threading.Thread(target=lambda: store[2].manifest)
    first.start()
    assert stuck.wait(60)
    second.start()
    second.join(30)
    went_on = not second.is_alive()
    go_on.set()
    first.join()
    assert went_on


# -- space ----------------------------------------------------------------------------------------------------------


def test_a_save_that_cannot_fit_is_refused_beforehand(root, monkeypatch):
    """NoSpace, nothing written."""
    store = having(root, 1)
    before = listing(root)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 1000)
    with pytest.raises(NoSpace, match="1,000 are free"):
        put(store, 2)
    assert listing(root) == before


def test_a_disk_that_fills_up_leaves_the_store_as_it_was(root):
    """ENOSPC at any change before the commit: NoSpace, the same names and bytes; then the save works."""
    store = having(root, 1)
    for step in itertools.count(2):
        before, calls = listing(root), []
        fail, count = failing(step - 2, FULL), counting(calls)

        def act(call: Any, perform: Any, fail: Any = fail, count: Any = count) -> Any:
            return count(call, lambda: fail(call, perform))

        try:
            with door(act):
                put(store, 2)
        except NoSpace:
            if steps(store) == [1]:
                assert listing(root) == before
                continue
        break
    assert step > 10
    assert whole(store.load(), 2)


def test_a_run_whose_directory_is_gone_says_so(root):
    """Also when the save had not begun to write."""
    store = having(root, 1)
    shutil.rmtree(root)
    with pytest.raises(StoreError, match="directory is gone"):
        put(store, 2)
    with pytest.raises(StoreError, match="directory is gone"), store.directory(step=3):
        raise AssertionError


# -- copies ---------------------------------------------------------------------------------------------------------


def by_tar(source: Path, target: Path) -> None:
    with tarfile.open(target.with_suffix(".tar"), "w") as archive:
        archive.add(source, "run")
    with tarfile.open(target.with_suffix(".tar")) as archive:
        archive.extractall(target.parent / "out", filter="data")
    (target.parent / "out" / "run").rename(target)


COPIES: dict[str, Callable[[Path, Path], Any]] = {
    "cp -r": lambda source, target: subprocess.run(["cp", "-r", source, target], check=True),
    "cp -rL": lambda source, target: subprocess.run(["cp", "-rL", source, target], check=True),
    "rsync": lambda source, target: subprocess.run(["rsync", "-a", f"{source}/", f"{target}/"], check=True),
    "tar": by_tar,
    "moved": lambda source, target: source.rename(target),
    "renamed": shutil.move,
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_a_store(root, how):
    """Read as the original is, also when that is gone; and a copy that is written to is a run of its own from there."""
    if how == "rsync" and shutil.which("rsync") is None:
        pytest.skip("rsync is not installed here; the other ways to copy a run are tried without it")
    with links():
        store = having(root, 1, 2, 3, 4, keep=Last(3) | Best("acc", max))
        assert max(names_of(store[4])) > 1  # checkpoints share a file
        store.close()
        target = root.with_name("copy")
        COPIES[how](root, target)
        shutil.rmtree(root, ignore_errors=True)
        found = Store(target)
        assert steps(found) == [2, 3, 4]
        assert all(whole(each.load(), each.step) and not list(each.problems()) for each in found.checkpoints())
        assert (target / "checkpoints" / "latest" / "manifest.json").exists()
        assert target in (target / "checkpoints" / "best").resolve().parents
        put(found, 5)
        assert steps(found) == [2, 3, 4, 5]


def steady(store, wanted):
    """Saves a state of which most does not change; the last three checkpoints share a file."""
    for step in wanted:
        store.save({"model": {"frozen": np.arange(2_000), "trained": np.full(3, step)}}, step=step)


def names_of(checkpoint):
    return {file.stat().st_nlink for file in checkpoint.path.iterdir()}


def test_what_a_killed_pin_left_goes_with_the_next(tmp_path):
    """Once it is so old that nobody can be at it."""
    store = Store(tmp_path)
    with links():
        steady(store, range(1, 5))
        store.pin(1)
        old, young = tmp_path / "pins" / ".a.part", tmp_path / "pins" / ".b.part"
        for path in (old, young):
            path.write_bytes(b"half")
        os.utime(old, (0, 0))
        store.pin(4)
    assert sorted(os.listdir(tmp_path / "pins")) == [".b.part", "step-000000001", "step-000000004"]
    assert names_of(store[4]) == {1}


def test_a_pin_at_the_moment_of_the_link_wins(tmp_path):
    """Whoever pins finds a file that nobody shares yet; the link that comes after it is taken back."""
    store = Store(tmp_path)
    with links(), pytest.MonkeyPatch.context() as patch:
        steady(store, (1, 2))
        real = disk.link

        def link(source, target):
            Store(tmp_path).pin(2)
            real(source, target)

        patch.setattr(disk, "link", link)
        steady(store, (3,))
    assert names_of(store[2]) == {1}
    assert not list(store[3].problems())


def test_a_file_that_is_not_the_one_that_was_read_back_is_read_again(tmp_path):
    """Whatever was done to it: it is linked if its bytes are right, and if they are not, written anew."""
    store = Store(tmp_path)
    with links():
        steady(store, (1, 2))
        for step, harm in ((3, os.utime), (4, rewritten), (5, flip)):
            assert store.read_back_early(store.unread()) is None
            assert [] == store.unread()
            harm(store[step - 1].path / "model-steady.safetensors")
            steady(store, (step,))
            assert not list(store[step].problems(cold=True))
    assert [2, 2, 1] == [max(names_of(store[step])) for step in (3, 4, 5)]


def rewritten(path):
    shutil.copy(path, path.with_suffix(".copy"))
    os.replace(path.with_suffix(".copy"), path)


@pytest.mark.parametrize("how", ["fails", "ends early"])
def test_a_file_that_cannot_be_read_while_it_is_copied_ends_no_process(root, how):
    """A pin copies files that are shared. From a map, such a file would end the process with SIGBUS."""
    store = Store(root, keep=Last(9))
    for step in (1, 2):
        store.save({"array": np.ones(1 << 20)}, step=step)
    shared = next(path for path in store[2].path.glob("*.safetensors") if path.stat().st_nlink > 1)
    real = bulk.write

    def struck(target, *rest):
        if how == "ends early":
            os.truncate(shared, 4096)
            return real(target, *rest)
        with mock.patch("os.preadv", side_effect=OSError(errno.EIO, os.strerror(errno.EIO))):
            return real(target, *rest)

    def pins():
        with mock.patch.object(bulk, "write", struck), pytest.raises(StoreError) as raised:
            store.pin(2)
        os._exit(7 if str(shared) in str(raised.value) else 1)

    assert 7 == in_a_child(pins)
    assert shared.stat().st_nlink > 1


def test_what_a_stop_has_left_makes_room_when_the_disk_is_full(tmp_path, monkeypatch):
    """A save that finds no space applies the rule first; one that the rule cannot help is refused, and nothing goes."""
    store = Store(tmp_path, keep=Last(1))
    for step in (1, 2, 3):
        store.commit(store.stage({"step": step}), step=step, leave=lambda: 2)
    assert [1, 2, 3] == steps(store)
    monkeypatch.setattr(disk, "free_bytes", lambda _: 0 if len(store.checkpoints()) > 1 else 1 << 40)
    store.save({"step": 4}, step=4)
    assert [4] == steps(store)
    monkeypatch.setattr(disk, "free_bytes", lambda _: 0)
    with pytest.raises(NoSpace, match="nothing was written"):
        store.save({"step": 5}, step=5)
    assert [4] == steps(store)


def test_damage_that_lets_nothing_go_is_told_when_the_disk_is_full(tmp_path, monkeypatch):
    """The newest is damaged, so no older one goes; the error says why, and not only that space is short."""
    store = Store(tmp_path, keep=Last(1))
    for step in (1, 2, 3):
        store.commit(store.stage({"array": np.ones(9) * step}), step=step, leave=lambda: 2)
    flip(next(store[3].path.glob("*.safetensors")))
    monkeypatch.setattr(disk, "free_bytes", lambda _: 0 if len(store.checkpoints()) > 1 else 1 << 40)
    with pytest.raises(NoSpace, match=r"nothing was written.*step-000000003.* changed since commit; no older"):
        store.save({"array": np.ones(9)}, step=4)
    assert [1, 2, 3] == steps(store)


def test_damage_of_the_last_with_finite_weights_does_not_keep_a_disk_full(tmp_path, monkeypatch, capsys):
    """It goes to quarantine, the one before takes its place, and what the rule does not keep makes room."""
    store = Store(tmp_path, keep=Last(1))
    for step in (1, 2, 3, 4):
        weights = np.full(9, step if step < 4 else math.nan)
        store.commit(store.stage({"w": weights}, weights={id(weights)}), step=step, leave=lambda: 3)
    flip(next(store[3].path.glob("*.safetensors")))
    monkeypatch.setattr(disk, "free_bytes", lambda _: 0 if len(store.checkpoints()) > 2 else 1 << 40)
    store.save({"w": np.ones(9)}, step=5)
    assert ["step-000000003-damaged"] == [path.name for path in (tmp_path / "quarantine").iterdir()]
    assert "step-000000003 moves to quarantine/" in capsys.readouterr().err
    assert [5] == steps(store)


def test_what_is_left_to_the_next_save_goes_with_it(tmp_path):
    """Also when more is left over than was allowed, and when that is allowed no more while it is read back."""
    store = Store(tmp_path, keep=Last(1))
    for step in (1, 2, 3):
        store.commit(store.stage({"step": step}), step=step, leave=lambda: 1)
    assert [3] == steps(store)
    answers = iter([0, 1])
    store.commit(store.stage({"step": 4}), step=4, leave=lambda: next(answers))
    assert [3, 4] == steps(store)


def test_leaves_without_bytes_are_no_gap(tmp_path, monkeypatch):
    """Wherever they stand in the state: the next leaf of their file begins where they do.
    Also where files are copied."""

    def refused(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    leaves = {
        "narrow": np.arange(9, dtype="int8"),
        "none": np.empty((1, 0), "uint16"),
        "wide": np.arange(9, dtype="uint16"),
        "nothing": np.empty((0, 3), "uint16"),
    }
    monkeypatch.setattr(disk, "link", refused)
    with requests(linked=1):
        for number, order in enumerate(itertools.permutations(leaves)):
            state = {name: leaves[name] for name in order}
            store = Store(tmp_path / str(number))
            for step in (1, 2):
                store.save(state, step=step)
                assert [] == list(store[step].problems(cold=True))
                assert bits(state) == bits(store.load(step))
            assert store[2].manifest.files["state.safetensors"].links == 1, order


def test_a_process_lists_the_directory_before_it_looks_again(root, monkeypatch):
    """A network file system may show what another process made only after a new listing."""
    listed = []
    monkeypatch.setattr(attempts, "JOIN_S", 0.2)
    monkeypatch.setattr(scan, "names", listed.append)
    attempts.wait_until_visible(root / "made elsewhere", lambda _: bool(listed))
    assert [root] == listed


def test_a_directory_that_loses_what_is_made_in_it_ends_the_start(root, monkeypatch):
    """With an error that says what to look for; it is not tried for ever."""
    real = disk.make_dir
    monkeypatch.setattr(disk, "make_dir", lambda path: None if path.name.startswith(".claim-") else real(path))
    with pytest.raises(StoreError, match="look for a program that removes files there"):
        claiming.claim(root)
    assert [] == list((root / "attempts").iterdir())


def test_a_process_that_comes_and_goes_meanwhile_is_no_stranger(root, monkeypatch):
    """It begins and ends its attempt while another one lists what there is, wherever that has got to."""
    for number, name in enumerate(["_used_numbers", "_possibly_alive", "_refuse_while_alive", "_create_attempt_dir"]):
        path, real = root / name, getattr(claiming, name)
        store = Store(path)
        store.save({"n": 1}, step=1)
        store.close()

        def meanwhile(*given, real=real, path=path, name=name, number=number, **more):
            monkeypatch.setattr(claiming, name, real)
            with closing(Store(path)) as other:
                other.save({"n": number}, step=2)
            return real(*given, **more)

        monkeypatch.setattr(claiming, name, meanwhile)
        assert (name, 3) == (name, claiming.claim(path).number)
