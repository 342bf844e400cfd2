"""Unchanged leaves: their files are linked, not written; and nothing is lost by it."""

import errno
import itertools
import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults import links, scratched
from holdfast import disk
from holdfast.errors import Damaged, StoreError, UsageError
from holdfast.rules import Last, Whole
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.store import Store
from stores import asked, flip, invoke, steps
from toy import events, new_run
from unchanged import Frozen, lora, own_bytes, rest, same, saved, shared

STEADY = "model-steady.safetensors"


@pytest.fixture(autouse=True)
def _small():
    with links():
        yield


def test_from_the_third_save_on_only_what_changes_is_written(tmp_path):
    """99% frozen, interleaved layer by layer with what is trained: at most 1.5% of the bytes."""
    store = Store(tmp_path)
    states = saved(store, 4, lora())
    total = sum(array.nbytes for array in states[1].values())
    assert own_bytes(store[1].path) > total
    for step in (3, 4):
        assert own_bytes(store[step].path) <= 0.015 * total
        assert store[step].size_bytes >= total
    for step, state in states.items():
        assert same(store.load(step)["model"], state)
        assert [] == list(store[step].problems(cold=True))


@settings(deadline=None)
@given(changes=st.lists(st.sets(st.integers(0, 7)), min_size=2, max_size=6), whole=st.integers(1, 4))
def test_whatever_changes_when_each_checkpoint_holds_its_own_state(changes, whole):
    """Leaves that freeze, thaw and freeze again: every checkpoint loads as it was saved, also after a restart."""
    with scratched("lineage") as base:
        arrays = {f"{index}": np.full(1_000 + index, index, "int64") for index in range(8)}
        states = []
        for step, changing in enumerate(changes):
            for index in changing:
                arrays[str(index)] += 1
            if step % 3 == 0:
                store = Store(base, whole=Whole(checkpoints=whole), take_over=True)
                store.parent = f"step-{step - 1:09d}" if step else None
            store.save({"a": {**arrays}, "b": arrays["0"]}, step=step)
            states.append({key: array.copy() for key, array in arrays.items()})
        for step, state in enumerate(states):
            assert same(store.load(step)["a"], state)
            assert [] == list(store[step].problems())
            held = store[step].manifest.files.values()
            assert all(file.links < whole for file in held)


def test_where_links_are_impossible_bytes_are_written(tmp_path, monkeypatch):
    """A file system without hard links costs space, and nothing else."""
    for code in (errno.EMLINK, errno.EXDEV, errno.EPERM, errno.ENOTSUP):
        refused = []

        def refuse(source, target, code=code, refused=refused):
            refused.append(target)
            raise OSError(code, os.strerror(code), str(target))

        monkeypatch.setattr(disk, "link", refuse)
        store = Store(tmp_path / str(code))
        states = saved(store, 4)
        assert refused
        assert [] == list(itertools.chain.from_iterable(shared(store[step].path) for step in states))
        assert all(same(store.load(step)["model"], state) for step, state in states.items())
        assert [] == list(store[4].problems(cold=True))


def test_a_file_is_written_anew_every_so_many_checkpoints(tmp_path):
    """No damage is shared by more than `Whole` says."""
    store = Store(tmp_path, whole=Whole(checkpoints=3))
    saved(store, 9)
    inodes = [(store[step].path / STEADY).stat().st_ino for step in range(2, 9)]
    assert [3, 3, 1] == [len(list(group)) for _, group in itertools.groupby(inodes)]


def test_a_file_is_written_anew_when_it_is_old(tmp_path):
    """A day, unless the user says otherwise; here, none at all."""
    store = Store(tmp_path, whole=Whole(hours=1e-9))
    saved(store, 4)
    assert [] == shared(store[4].path)


def test_links_can_be_switched_off(tmp_path):
    """Whole(checkpoints=1): each checkpoint has its own bytes. Less than that is no number of checkpoints."""
    store = Store(tmp_path, whole=Whole(checkpoints=1))
    saved(store, 4)
    assert ["manifest.json", "model.safetensors"] == sorted(os.listdir(store[4].path))
    with pytest.raises(UsageError):
        Whole(checkpoints=0)
    with pytest.raises(UsageError):
        Whole(hours=0)
    for make in (lambda: Store(tmp_path, whole=3), lambda: new_run(tmp_path, Frozen(), whole=3)):
        with pytest.raises(UsageError, match="whole=3"):
            make()


def test_a_pinned_checkpoint_has_its_own_bytes(tmp_path):
    """Those that it shared are copied when it is pinned; later ones take nothing from it."""
    store = Store(tmp_path)
    states = saved(store, 4)
    store.pin(4)
    assert [] == shared(store[4].path)
    assert [STEADY] == shared(store[3].path)
    for step in (5, 6):
        store.save({"model": states[4]}, step=step)
    assert [] == shared(store[4].path)
    assert same(store.load(4)["model"], states[4])
    assert [] == list(store[4].problems(cold=True))
    assert {"step-000000004"} == store.pins()
    assert [] == [name for name in os.listdir(tmp_path / "pins") if name.startswith(".")]


def test_pinning_what_is_damaged_says_so_and_pins(tmp_path):
    """Nobody else may remove it before somebody has looked at it."""
    store = Store(tmp_path)
    saved(store, 4)
    flip(store[4].path / STEADY)
    with pytest.raises(Damaged):
        store.pin(3)
    assert {"step-000000003"} == store.pins()


def test_a_damaged_file_is_not_passed_on(tmp_path):
    """It is read back before it is linked: the next checkpoint has bytes of its own, which are right."""
    store = Store(tmp_path)
    states = saved(store, 3)
    again = Store(tmp_path, take_over=True)
    again.parent = "step-000000003"
    staged = again.stage({"model": states[3]})
    assert staged.links
    flip(store[3].path / STEADY)
    again.commit(staged, step=4)
    assert [] == shared(again[4].path)
    assert [] == list(again[4].problems(cold=True))
    assert same(again.load(4)["model"], states[3])


def test_a_file_that_the_disk_does_not_give_is_not_passed_on(tmp_path, monkeypatch):
    """What it held is in memory: the save writes it, and does not fail for what it need not read."""
    for code in (errno.EIO, errno.EACCES):
        store = Store(tmp_path / str(code))
        states = saved(store, 3)
        broken, read = (store[3].path / STEADY).stat().st_ino, os.preadv
        refused = []

        def preadv(descriptor, *rest, code=code, broken=broken, read=read, refused=refused):
            if os.fstat(descriptor).st_ino == broken:
                refused.append(code)
                raise OSError(code, os.strerror(code), STEADY)
            return read(descriptor, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", preadv)
            store.save({"model": states[3]}, step=4)
        assert refused
        assert [] == shared(store[4].path)
        assert same(store.load(4)["model"], states[3])


def test_what_is_pinned_while_a_save_is_staged_is_not_linked(tmp_path):
    """The pin came first: its checkpoint keeps its files to itself."""
    store = Store(tmp_path)
    states = saved(store, 4)
    staged = store.stage({"model": states[4]})
    assert staged.links
    store.pin(4)
    store.commit(staged, step=5)
    assert [] == shared(store[4].path)
    assert same(store.load()["model"], states[4])


def test_a_checkpoint_that_went_while_a_save_was_staged_costs_only_bytes(tmp_path):
    """Somebody has removed it by hand: everything is written."""
    store = Store(tmp_path)
    states = saved(store, 4)
    staged = store.stage({"model": states[4]})
    shutil.rmtree(store[4].path)
    store.commit(staged, step=5)
    assert same(store.load()["model"], states[4])


def test_a_renamed_checkpoint_shares_no_damage(tmp_path):
    """What is wrong with it is its name: the others are as good as they were."""
    store = Store(tmp_path)
    states = saved(store, 6)
    store[6].path.rename(tmp_path / "checkpoints" / "step-000000016")
    assert {} == store.sharing_damage(store[16])
    assert same(store.load()["model"], states[5])


def test_in_the_background_it_is_saved_again_at_the_next_safe_point(tmp_path, capsys):
    """A snapshot lacks the bytes that were to be linked: one line says so, and the next step has them."""
    frozen = Frozen()
    with new_run(tmp_path, frozen) as run:
        for step in run.steps(8):
            frozen.small += 1
            if step == 6:
                with pytest.raises(StoreError, match="step-000000006 was discarded"):
                    run.wait()
            run.wait()
            if step == 5:
                rest()
                flip(run._last_session().store[5].path / "toy-steady.safetensors")
    err = capsys.readouterr().err
    assert "step 6 is not saved, and training goes on" in err
    assert "written anew" in err
    assert [6] == [event["step"] for event in events(tmp_path, "save_failed")]
    store = Store(tmp_path)
    assert [] == list(store[8].problems(cold=True))
    assert same(store.load(8)["toy"], {"big": np.arange(10_000.0), "small": np.full(3, 8.0)})


def trained(path, **options):
    """Six steps with a save after each."""
    frozen = Frozen()
    with new_run(path, frozen, keep=Last(9), **options) as run:
        for _ in run.steps(6):
            frozen.small += 1


def test_who_shares_a_damaged_file_is_known_without_reading_it(tmp_path):
    """The fallback goes straight to the newest checkpoint that does not hold the damaged file."""
    trained(tmp_path, whole=Whole(checkpoints=3))
    store = Store(tmp_path)
    inode = (store[6].path / "toy-steady.safetensors").stat().st_ino
    sharing = [c.step for c in store.checkpoints() if holds(c, inode)]
    assert len(sharing) == 2
    flip(store[6].path / "toy-steady.safetensors")
    assert {f"step-{step:09d}" for step in sharing[:-1]} == store.sharing_damage(store[6]).keys()
    assert same(store.load()["toy"], {"big": np.arange(10_000.0), "small": np.full(3, float(sharing[0] - 1))})
    resumed = Frozen()
    with new_run(tmp_path, resumed, keep=Last(9)) as run:
        assert sharing[0] - 1 == run.step
        rejected = dict(run._last_session().origin.rejected)
    assert "shares toy-steady.safetensors with step-000000006" in rejected[f"step-{sharing[0]:09d}"]
    assert resumed.small.tolist() == [run.step] * 3


def test_older_ones_that_share_the_damage_are_set_aside_too(tmp_path):
    """The run goes on from a pinned checkpoint in between;
    nothing is to count on what lies before it and is as damaged."""
    trained(tmp_path)
    store = Store(tmp_path)
    store.pin(4)
    inode = (store[6].path / "toy-steady.safetensors").stat().st_ino
    damaged = {checkpoint.step for checkpoint in store.checkpoints() if holds(checkpoint, inode)}
    assert {3, 5, 6} <= damaged
    assert 4 not in damaged
    flip(store[6].path / "toy-steady.safetensors")
    with new_run(tmp_path, Frozen(), keep=Last(9)) as run:
        assert 4 == run.step
    assert damaged.isdisjoint(checkpoint.step for checkpoint in store.checkpoints())


def holds(checkpoint: Checkpoint, inode):
    return any(file.stat().st_ino == inode for file in checkpoint.path.iterdir())


def test_only_what_is_the_same_in_every_respect_is_linked(tmp_path):
    """Equal bytes of another dtype, shape or order are another leaf."""
    store = Store(tmp_path)
    zeros = np.zeros((64, 64), "float32")
    for step, array in enumerate([zeros, zeros, zeros, zeros.view("int32"), zeros.reshape(32, 128), zeros.copy("F")]):
        store.save({"a": array}, step=step)
    found = [store.load(step)["a"] for step in range(6)]
    assert ["float32"] * 3 + ["int32"] + ["float32"] * 2 == [str(array.dtype) for array in found]
    assert (32, 128) == found[4].shape
    assert ["state.safetensors"] == shared(store[2].path)
    assert [] == shared(store[4].path)


def test_pruning_leaves_those_that_share_whole(tmp_path):
    """The checkpoint for which the bytes were written may go; the bytes stay as long as anybody has them."""
    store = Store(tmp_path, keep=Last(2))
    states = saved(store, 7)
    assert [6, 7] == steps(store)
    assert "step-000000002" == store[7].manifest.files[STEADY].origin
    assert all(same(store.load(step)["model"], states[step]) for step in (6, 7))


def test_ls_shows_what_a_checkpoint_takes_on_the_disk_and_who_shares(tmp_path):
    """Logical and physical bytes; a copy that knows no links is shown as it is."""
    saved(Store(tmp_path / "run"), 4)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    rows, copied = (listed(tmp_path / name) for name in ("run", "copy"))
    assert [[], [], ["step-000000002"], ["step-000000002"]] == [row["shares_with"] for row in rows]
    assert [row["size_bytes"] for row in rows[:2]] == [row["disk_bytes"] for row in rows[:2]]
    assert rows[3]["disk_bytes"] < 0.1 * rows[3]["size_bytes"]  # most of it is the manifest
    assert [row["size_bytes"] for row in copied] == [row["disk_bytes"] for row in copied]
    shown = invoke("ls", tmp_path / "run").output
    assert "ON DISK" in shown
    assert "SHARES FILES OF" in shown


def test_prune_says_what_it_really_frees(tmp_path):
    """A file that somebody else still has takes as much as before."""
    store = Store(tmp_path)
    saved(store, 6)
    store.close()
    held = disk_use(tmp_path / "checkpoints")
    told = asked("prune", tmp_path, "--keep", "Last(2)")
    assert 4 == sum(row["goes"] for row in told["checkpoints"])
    assert held - disk_use(tmp_path / "checkpoints") == told["freed_bytes"]


def disk_use(path):
    found = {file.stat().st_ino: file.stat().st_size for file in path.glob("step-*/*")}
    return sum(found.values())


def listed(path):
    return asked("ls", path)["checkpoints"]
