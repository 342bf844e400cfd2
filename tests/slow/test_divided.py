"""Big leaves of which a part changes: only what changed is written, and nothing is lost or mixed up by it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

import faults
from holdfast import Every, Run
from holdfast.errors import Damaged
from holdfast.rules import Last, Whole
from holdfast.state.codec import Block
from holdfast.state.snapshot import Arena
from holdfast.store import boxes, divided, format
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.lineage import Lineage
from holdfast.store.shards import StaleLink
from holdfast.store.store import Store
from stores import asked, flip, invoke

KIB = 1 << 10
ROWS, WIDTH = 400, 512  # of a buffer of 200 KiB


@pytest.fixture
def small(monkeypatch):
    """A leaf of 64 KiB is divided, in pieces of 4 KiB, so that states may be small."""
    monkeypatch.setattr(divided, "LEAST_BYTES", 64 * KIB)
    monkeypatch.setattr(divided, "PIECE_BYTES", 4 * KIB)


class Buffer:
    """A ring of rows, of which each step overwrites some."""

    def __init__(self, rows=ROWS, width=WIDTH, seed=0):
        self.rng = np.random.default_rng(seed)
        self.rows = self.rng.integers(0, 256, (rows, width), dtype=np.uint8)
        self.at = 0

    def push(self, count):
        places = (self.at + np.arange(count)) % len(self.rows)
        self.rows[places] = self.rng.integers(0, 256, (count, self.rows.shape[1]), dtype=np.uint8)
        self.at = int(places[-1] + 1) % len(self.rows)

    def scatter(self, count):
        places = self.rng.choice(len(self.rows), count, replace=False)
        self.rows[places] = self.rng.integers(0, 256, (count, self.rows.shape[1]), dtype=np.uint8)

    def state_dict(self):
        return {"rows": self.rows, "at": self.at}

    def load_state_dict(self, state):
        self.rows[:] = state["rows"]
        self.at = state["at"]


def new_bytes(checkpoint):
    return sum(file.stat().st_size for file in checkpoint.path.iterdir() if file.stat().st_nlink == 1)


def is_divided(checkpoint):
    return any(key.startswith("@") for key in checkpoint.manifest.leaves)


def saved(store, buffer, steps, *, arena=None):
    """Save again and again, with one new row in a hundred each time; the share of bytes that each save wrote."""
    shares = []
    for step in steps:
        staged = store.stage(buffer.state_dict(), arena)
        checkpoint = store.commit(staged, step=step)
        shares.append(new_bytes(checkpoint) / buffer.rows.nbytes)
        assert buffer.rows.tobytes() == store.load()["rows"].tobytes()
        buffer.push(max(1, len(buffer.rows) // 100))
    return shares


# What it is for -----------------------------------------------------------------------------------------------------


def test_one_row_in_a_hundred_costs_at_most_two_in_a_hundred_bytes_from_the_third_save_on(tmp_path):
    """With the sizes that users get: the smallest leaf that is divided."""
    buffer = Buffer(rows=64 * KIB, width=KIB)
    shares = saved(Store(tmp_path, keep=Last(3)), buffer, range(1, 7))
    assert max(shares[2:]) <= 0.02, shares
    assert min(shares[:2]) >= 1


def test_files_stay_few_and_saves_small_however_long_it_goes(monkeypatch):
    """More than a round of a ring of 1024 pieces, of which each save finds 11 or 12 changed.
    No disk is written here."""
    monkeypatch.setattr(divided, "LEAST_BYTES", 1024)
    monkeypatch.setattr(divided, "PIECE_BYTES", 1)
    ring, at = np.zeros(2048, np.uint8), 0
    forever = Whole(checkpoints=10**6, hours=10**6)
    written, counts, totals = [], [], []
    parts = divided.split_block(Block("numpy", "uint8", ring.shape, memoryview(ring), {}))
    lineage = Lineage(Path("run/checkpoints/step-000000001"), format.utc(0), {}, {})
    for step in range(1, 130):
        first = divided.PieceKey(step, 0, "ring")
        known = divided.newest_pieces(lineage.leaves).get("ring", {})
        made = divided._plan_division(first, parts, known, lineage, forever, divided.MOST_FILES)
        assert made is not None
        leaves = {key: leaf for link in made.links for key, leaf in link.leaves.items()}
        files = {link.name: link.file for link in made.links}
        for shard in made.shards:
            files[shard.name] = format.FileEntry(sum(made.fresh[key].data.nbytes for key in shard.keys), "")
            for key in shard.keys:
                part = made.fresh[key]
                digest = format.digest(part.data)
                leaves[key] = format.LeafEntry(
                    part.kind, part.dtype, part.shape, shard.name, 0, part.data.nbytes, digest, part.attrs
                )
        if step % 10 == 0:
            holds = divided.newest_pieces(leaves)["ring"]
            assert [leaves[holds[i]].digest for i in range(1024)] == [format.digest(part.data) for part in parts]
        written.append(sum(part.data.nbytes for part in made.fresh.values()) / ring.nbytes)
        counts.append(len(files))
        totals.append(sum(file.size_bytes for file in files.values()) / ring.nbytes)
        lineage = Lineage(lineage.path, lineage.created, files, leaves)
        places = (at + np.arange(21)) % 2048
        ring[places] += 1
        at = int(places[-1] + 1) % 2048
    assert written[0] == 1
    assert max(written[1:23]) <= 0.012  # all that `Whole` allows by itself
    assert max(written[1:]) <= 0.035, max(written[1:])
    assert 40 <= max(counts) <= 48
    assert max(totals) <= 3


def test_a_snapshot_holds_only_what_changed(small, tmp_path):
    """A save in the background copies what it writes."""
    buffer, store = Buffer(), Store(tmp_path)
    saved(store, buffer, [1, 2], arena=Arena())
    staged = store.stage(buffer.state_dict(), Arena())
    snapshot: Any = staged.snapshot
    assert sum(image.nbytes for image in snapshot.images) < buffer.rows.nbytes // 10
    before = buffer.rows.copy()
    buffer.rows[:] = 0  # the snapshot is nobody else's
    store.commit(staged, step=3)
    assert before.tobytes() == store.load()["rows"].tobytes()


def test_a_save_decodes_no_manifest_however_many_files_it_links(small, monkeypatch, tmp_path):
    """A manifest of many pieces takes longer to decode than a small file takes to read."""
    buffer, decode, reads, linked = Buffer(), format.decode, [], []
    monkeypatch.setattr(format, "decode", lambda data, path, *key: reads.append(path) or decode(data, path, *key))
    store = Store(tmp_path, keep=Last(2))
    for step in range(1, 11):
        checkpoint = store.save(buffer.state_dict(), step=step)
        linked.append(sum(file.stat().st_nlink > 1 for file in checkpoint.path.iterdir()))
        buffer.push(4)
    assert linked[9] >= linked[4] + 3
    assert [] == reads
    store.load()
    assert 1 == len(reads)


def test_a_leaf_of_which_most_changes_is_written_whole_and_rarely_tried_again(small, tmp_path):
    buffer, store = Buffer(), Store(tmp_path, keep=Last(2))
    found = []
    for step in range(1, 12):
        found.append(is_divided(store.save(buffer.state_dict(), step=step)))
        assert buffer.rows.tobytes() == store.load()["rows"].tobytes()
        buffer.scatter(ROWS // 3)
        buffer.rows[::2] += 1
    assert found.count(True) <= 2, found


def test_no_file_is_shared_by_more_checkpoints_than_whole_says(small, tmp_path):
    buffer, store = Buffer(), Store(tmp_path, whole=Whole(checkpoints=4))
    for step in range(1, 15):
        checkpoint = store.save(buffer.state_dict(), step=step)
        assert max(file.stat().st_nlink for file in checkpoint.path.iterdir()) <= 4
        buffer.push(4)
    assert is_divided(checkpoint)
    store = Store(tmp_path, whole=Whole(checkpoints=1), take_over=True)
    checkpoint = store.save(buffer.state_dict(), step=99)
    assert (False, {1}) == (is_divided(checkpoint), {file.stat().st_nlink for file in checkpoint.path.iterdir()})


def test_a_run_goes_on_from_a_divided_leaf(small, tmp_path):
    """Bit for bit, in place; and its first save writes only what changed."""

    def train(steps, buffer):
        with Run(tmp_path / "run", {"buffer": buffer}, every=Every(steps=1)) as run:
            for _ in run.steps(steps):
                buffer.push(4)

    train(5, Buffer())
    resumed = Buffer(seed=1)
    rows = resumed.rows
    train(5, resumed)
    expected = Buffer()
    for _ in range(5):
        expected.push(4)
    assert resumed.rows is rows
    assert (expected.at, expected.rows.tobytes()) == (resumed.at, rows.tobytes())
    assert is_divided(Store(tmp_path / "run").latest())
    train(6, resumed)
    newest = Store(tmp_path / "run").latest()
    assert is_divided(newest)
    assert new_bytes(newest) < 0.25 * rows.nbytes


# Which leaves -------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sampled_from([1, 2, 4, 8]), st.integers(1, 600))
def test_pieces_cover_a_leaf_in_order_each_in_one_stretch(shape, itemsize, least):
    """Of every shape."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divided, "PIECE_BYTES", least)
        found = divided.piece_grid(shape, itemsize)
    if not found:
        assert itemsize > least or np.prod(shape) > divided.MOST_PIECES
        return
    assert boxes.is_tiled(shape, found)
    stretches = [list(boxes.byte_ranges(shape, box, itemsize)) for box in found]
    assert {1} == {len(each) for each in stretches}
    starts = [each[0].start for each in stretches]
    sizes = [each[0].size for each in stretches]
    assert starts == [sum(sizes[:index]) for index in range(len(sizes))]
    assert all(size <= max(least, -(-np.prod(shape) * itemsize // divided.MOST_PIECES)) for size in sizes)


def test_arrays_and_tensors_of_all_kinds(small, tmp_path):
    """Whatever is divided and whatever is not comes back as it was:
    wide rows, one axis, a view, Fortran's order, two names."""
    torch = pytest.importorskip("torch")
    both = torch.arange(40_000, dtype=torch.float32)
    state = {
        "flat": np.arange(60_000, dtype=np.float64),
        "wide": np.zeros((2, 90_000), np.int16),
        "cube": np.ones((30, 20, 70), np.complex128),
        "tensor": torch.zeros(100, 400, dtype=torch.bfloat16),
        "both": [both, both[5:9], both.view(200, 200)],
        "same": both,
        "fortran": np.asfortranarray(np.zeros((300, 300))),
        "empty": np.zeros((0, 9)),
        "few": np.arange(5),
    }
    store = Store(tmp_path)
    for step in range(1, 6):
        checkpoint = store.save(state, step=step)
        found = store.load()
        for key in ("flat", "wide", "cube", "fortran", "empty", "few"):
            assert (state[key].dtype, state[key].tobytes()) == (found[key].dtype, found[key].tobytes())
        assert torch.equal(state["tensor"], found["tensor"])
        assert torch.equal(both, found["same"])
        assert all(map(torch.equal, state["both"], found["both"]))
        found["both"][0][6] = -1
        assert -1 == found["both"][1][1] == found["both"][2][0, 6]  # still one memory
        for key in ("flat", "wide", "cube", "tensor", "fortran"):
            state[key][(0,) * state[key].ndim] += 1
            state[key][(-1,) * state[key].ndim] = step
        both[step] = step
    parted = {place.leaf for place in map(divided.parse_key, checkpoint.manifest.leaves) if place is not None}
    assert {"flat", "wide", "cube", "tensor"} == parted


# Damage and crashes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arena", [False, True], ids=["in place", "snapshot"])
def test_a_damaged_file_is_found_and_its_pieces_are_written_anew(arena, small, tmp_path):
    """Any byte of any file: verify tells, a load does not return it, and the next save does not link it."""
    buffer, store = Buffer(), Store(tmp_path / "run")
    saved(store, buffer, [1, 2, 3, 4])
    store.close()
    names = sorted(name for name in os.listdir(store.latest().path) if name != format.MANIFEST)
    assert len(names) >= 3
    for name in names:
        for at in (0, 100, -1):
            root = tmp_path / f"{name}{at}"
            shutil.copytree(store.root, root)
            again = Store(root)
            newest = again.latest()
            flip(newest.path / name, at)
            assert name in {problem.path.name for problem in newest.problems(cold=True)}
            again.parent = newest.path.name
            staged = again.stage(buffer.state_dict(), Arena() if arena else None)
            linked = name in {link.name for link in staged.links}
            assert linked or name != names[0]
            if arena and linked:  # it lacks the bytes, and is staged again
                with pytest.raises(StaleLink):
                    again.commit(staged, step=9)
                staged = again.stage(buffer.state_dict(), Arena())
            checkpoint = again.commit(staged, step=9)
            assert [] == list(checkpoint.problems(cold=True))
            assert buffer.rows.tobytes() == checkpoint.load()["rows"].tobytes()
            shutil.rmtree(root)


def test_what_a_load_reads_is_checked(small, tmp_path):
    """A flipped byte is damage, in a piece that holds and in one that was written again since."""
    buffer, store = Buffer(), Store(tmp_path)
    saved(store, buffer, [1, 2, 3, 4])
    newest = store.latest()
    held = set(divided.newest_pieces(newest.manifest.leaves)["rows"].values())
    outcomes = set()
    for key, leaf in newest.manifest.leaves.items():
        if divided.parse_key(key) is None:
            continue
        flip(newest.path / leaf.shard, leaf.offset)
        with pytest.raises(Damaged, match=leaf.shard):
            newest.load()
        assert [key] == [problem.what.split("'")[1] for problem in newest.problems(cold=True)]
        outcomes.add(key in held)
        flip(newest.path / leaf.shard, leaf.offset)
    assert {True, False} == outcomes


def test_a_piece_that_does_not_say_where_it_lies_is_damage(small, tmp_path):
    """The manifest may be another program's: its own digest holds."""
    saved(Store(tmp_path), Buffer(), [1, 2, 3])
    path = Store(tmp_path).latest().path / format.MANIFEST
    manifest = format.decode(path.read_bytes(), path)
    for attrs in ({}, {"of": [ROWS, WIDTH]}, {"of": [ROWS, WIDTH], "at": "00"}, {"of": [ROWS], "at": [0]}):
        leaves = {
            key: msgspec.structs.replace(leaf, attrs=attrs) if divided.parse_key(key) else leaf
            for key, leaf in manifest.leaves.items()
        }
        path.write_bytes(format.encode(msgspec.structs.replace(manifest, leaves=leaves)))
        with pytest.raises(Damaged, match="a piece says that it lies"):
            Checkpoint(path.parent).load()


@pytest.mark.parametrize("step", [2, 3, 4])
def test_killed_at_any_change_to_the_disk_the_old_or_the_new_is_there(step, small, tmp_path):
    buffer, store = Buffer(), Store(tmp_path / "run")
    saved(store, buffer, range(1, step))
    store.close()
    before = store.latest().load()["rows"].tobytes()

    def again(root, act):
        copy = Store(root, keep=Last(2))
        copy.parent = copy.latest().path.name
        if step > 1:  # what this process has seen of the leaf
            copy.sharing._divided = store.sharing._divided
        with faults.door(act):
            copy.save(buffer.state_dict(), step=step)

    calls = []
    shutil.copytree(store.root, tmp_path / "whole")
    again(tmp_path / "whole", faults.counting(calls))
    assert is_divided(Store(tmp_path / "whole").latest())
    for number in range(len(calls)):
        left = number

        def crash(call, perform):
            nonlocal left
            left -= 1
            if left < 0:
                raise faults.Crash
            return perform()

        root = tmp_path / str(number)
        shutil.copytree(store.root, root)
        with pytest.raises(faults.Crash):
            again(root, crash)
        found = Store(root, take_over=True)
        assert found.load()["rows"].tobytes() in (before, buffer.rows.tobytes())
        assert all([] == list(each.problems()) for each in found.checkpoints())
        assert buffer.rows.tobytes() == found.save(buffer.state_dict(), step=50).load()["rows"].tobytes()
        shutil.rmtree(root)
    assert len(calls) > 20


def hostile(checkpoint, change):
    manifest = checkpoint.manifest
    leaves = dict(manifest.leaves)
    change(leaves, [key for key in leaves if divided.parse_key(key)])
    (checkpoint.path / format.MANIFEST).write_bytes(format.encode(msgspec.structs.replace(manifest, leaves=leaves)))


def drop(leaves, keys):
    del leaves[keys[3]]


def move(leaves, keys):
    attrs = {**leaves[keys[3]].attrs, "at": leaves[keys[4]].attrs["at"]}
    leaves[keys[3]] = msgspec.structs.replace(leaves[keys[3]], attrs=attrs)


def odd(leaves, keys):
    leaves[keys[3]] = msgspec.structs.replace(leaves[keys[3]], attrs={"of": "much"})


def other(leaves, keys):
    leaves[keys[3]] = msgspec.structs.replace(leaves[keys[3]], dtype="int8")


@pytest.mark.parametrize("change", [drop, move, odd, other])
def test_pieces_that_do_not_make_a_whole_are_damage(change, small, tmp_path):
    store = Store(tmp_path)
    saved(store, Buffer(), [1, 2])
    hostile(store.latest(), change)
    with pytest.raises(Damaged):
        Checkpoint(store.latest().path).load()


# Looking at it ------------------------------------------------------------------------------------------------------


def test_commands_copies_and_maps(small, tmp_path):
    """A divided leaf is one leaf to everybody; a copy of a checkpoint stands for itself."""
    buffer, store = Buffer(), Store(tmp_path / "run")
    saved(store, buffer, [1, 2, 3])
    rows = store.load()["rows"]
    shutil.copytree(store.latest().path, tmp_path / "copy")
    assert rows.tobytes() == Checkpoint(tmp_path / "copy").load()["rows"].tobytes()
    assert rows.tobytes() == store.load(mmap=True)["rows"].tobytes()
    assert ["rows"] == list(store.latest().leaves())

    assert 0 == invoke("verify", tmp_path / "run").exit_code
    assert "1 leaf" in invoke("show", tmp_path / "run").stdout
    assert [ROWS, WIDTH] == asked("show", tmp_path / "run")["leaves"]["rows"]["shape"]
    assert 0 == invoke("diff", f"{tmp_path}/run@3", tmp_path / "copy").exit_code
    different = invoke("diff", f"{tmp_path}/run@3", f"{tmp_path}/run@1")  # one divided, one whole
    assert (1, True) == (different.exit_code, "rows" in different.stdout)
    assert invoke("ls", tmp_path / "run").stdout
    assert 0 == invoke("export", tmp_path / "run", "--all", "-o", tmp_path / "all.npz").exit_code
    assert rows.tobytes() == np.load(tmp_path / "all.npz")["rows"].tobytes()
    store.pin(3)
    assert {1} == {file.stat().st_nlink for file in store[3].path.iterdir()}
    assert rows.tobytes() == store[3].load()["rows"].tobytes()


def test_a_reader_without_holdfast_puts_it_together_as_the_format_says(small, tmp_path):
    buffer, store = Buffer(), Store(tmp_path)
    saved(store, buffer, [1, 2, 3, 4])
    path = store.latest().path

    manifest = json.loads((path / "manifest.json").read_bytes())
    assert 1 == manifest["holdfast"]
    newest = {}
    for key in manifest["leaves"]:
        if key.startswith("@") and key.endswith("/rows"):
            number, piece = map(int, key[1:].partition("/")[0].split("."))
            newest[piece] = max(newest.get(piece, (-1, None)), (number, key))
    whole = b""
    for piece in sorted(newest):
        leaf = manifest["leaves"][newest[piece][1]]
        whole += (path / leaf["shard"]).read_bytes()[leaf["offset"] : leaf["offset"] + leaf["size_bytes"]]
    assert store.load()["rows"].tobytes() == whole
    for file in path.glob("*.safetensors"):  # each is one by itself
        tensors = load_file(file)
        assert tensors
        assert all(name.startswith("rows@") for name in tensors)


def test_the_golden_checkpoint_with_a_divided_leaf_is_read_bit_for_bit():
    """Its pieces lie in several files."""
    golden = Checkpoint(GOLDEN)
    assert is_divided(golden)
    assert golden_rows(4).tobytes() == golden.load()["rows"].tobytes()
    assert [] == list(golden.problems())
    assert 1 < len({leaf.shard for leaf in golden.manifest.leaves.values()})


GOLDEN = Path(__file__).parents[1] / "golden" / "divided" / "step-000000004"


def golden_rows(step):
    rows = np.arange(4096, dtype=np.int16).reshape(128, 32)
    for each in range(step):
        rows[each] = -each
    return rows


def write_golden(path):
    """The fourth save of one state: two files of it were taken over."""
    with faults.scratched("golden") as base, pytest.MonkeyPatch.context() as patch:
        patch.setattr(divided, "LEAST_BYTES", 4096)
        patch.setattr(divided, "PIECE_BYTES", 512)
        store = Store(base / "run")
        for step in range(1, 5):
            store.save({"rows": golden_rows(step)}, step=step)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(store[4].path, path)


if __name__ == "__main__":
    write_golden(GOLDEN)
