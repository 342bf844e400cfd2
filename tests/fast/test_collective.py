"""What several ranks save together: one checkpoint, and each finds in it what it gave."""

import json
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from collective import Divided, among, failed, kinds, put, read, same, saved, small, stage, state, whole
from faults import door
from holdfast import disk, journal
from holdfast.collective import division
from holdfast.collective.store import CollectiveStore
from holdfast.errors import Damaged, NoSpace, NotFound, RanksError, StoreError, Superseded, UsageError
from holdfast.pages import DistantBytes
from holdfast.rules import Last
from holdfast.run.run import Run
from holdfast.state import codec
from holdfast.state.numpy_leaves import _StridedItems
from holdfast.state.snapshot import Arena
from holdfast.store import attempt as attempts
from holdfast.store import boxes, claiming
from holdfast.store.boxes import Box
from holdfast.store.checkpoint import Checkpoint, StoredPieces
from holdfast.store.shards import SaveAbandoned
from holdfast.store.store import Store
from rank_threads import everywhere
from stores import flip, steps

SHARE_BYTES = division.SHARE_BYTES  # as shipped


@pytest.fixture(autouse=True)
def _small():
    with small(1 << 20):
        yield


def agree(root, states, **options):
    """Save, and ask the law: each rank reads what it gave; whoever asks plainly, or is a further rank, reads rank
    0's.
    """
    assert not failed(saved(root, states, **options))
    checkpoint = Store(root).latest()
    assert checkpoint.world == len(states)
    for rank, given_ in enumerate(states):
        assert same(whole(given_), read(checkpoint, rank))
    assert same(whole(states[0]), checkpoint.load())
    assert same(whole(states[0]), checkpoint.as_rank(len(states) + 3).load())
    assert not list(checkpoint.problems(cold=True))
    return checkpoint


def sizes(checkpoint):
    """Bytes of leaves that each rank wrote."""
    found = dict.fromkeys(range(checkpoint.world), 0)
    for leaf in checkpoint.manifest.leaves.values():
        found[int(leaf.shard.split("-")[1])] += leaf.size_bytes
    return found


def test_every_rank_finds_what_it_gave(tmp_path):
    """`as_rank(r)` is what rank r saved, bit for bit, values in the tree included; also where a state is no mapping."""
    for world in (2, 3, 4):
        agree(tmp_path / str(world), [state(rank) for rank in range(world)])
    for number, value in enumerate((5, None, [1, 2], "text", np.arange(7))):
        agree(tmp_path / "values", [value, {"a": np.arange(3)}, value], step=2 * number)
        agree(tmp_path / "values", [{"a": np.arange(3)}, value, 6], step=2 * number + 1)


def test_what_all_have_alike_is_written_once_and_divided(tmp_path):
    """Four ranks write about a quarter each, and all of it no more than one process would."""
    states = [state(rank, 100_000) for rank in range(4)]
    checkpoint = agree(tmp_path, states)
    total = sum(array.nbytes for array in states[0]["model"].values())
    written = sizes(checkpoint)
    assert total <= sum(written.values()) <= total + 4 * 6000
    assert max(written.values()) <= total / 4 + 400_000


def test_a_little_is_written_by_few(monkeypatch):
    """No rank gets a file for less than 4 MiB of it; those that do are spread over all."""
    monkeypatch.setattr(division, "SHARE_BYTES", SHARE_BYTES)
    for total_mib, writers in ((1, [0]), (9, [0, 8]), (16, [0, 4, 8, 12]), (1000, [*range(16)])):
        sizes = {f"{number:03}": total_mib << 12 for number in range(256)}
        shares = [division.share_of_rank(sizes, rank, 16) for rank in range(16)]
        assert writers == [rank for rank, keys in enumerate(shares) if keys]
        assert sorted(sizes) == [key for keys in shares for key in keys]


def test_one_rank_alone_writes_as_ever(tmp_path):
    """A run of one process saves a checkpoint without parts."""
    with Run(tmp_path, {"a": [1]}, background=False) as run:
        run.save()
    (manifest,) = tmp_path.glob("checkpoints/step-*/manifest.json")
    assert b'\n"ranks":' not in manifest.read_bytes()


def test_trees_may_differ(tmp_path):
    """Keys that only one rank has, or lacks; other values, orders and types; each comes back in its own tree."""
    states = [{"a": {"x": np.arange(5)}, "b": [1, 2], "c": "same"} for _ in range(4)]
    states[1] = {"b": [1, 2], "c": "same", "a": {"x": np.arange(5)}}
    states[2] = {"a": {"x": np.arange(5), "only": np.arange(9)}, "b": [1, 3], "c": "same", "d": {"e": 1.5}}
    del states[3]["a"]
    checkpoint = agree(tmp_path, states)
    told = json.loads((checkpoint.path / "rank-00002.json").read_text())["tree"][0]["dict"]
    assert {"rank": 0} == told["c"]
    assert ["b", "c", "a"] == checkpoint.as_rank(1).parts()


def rows(whole_, cuts):
    """One piece for each rank, cut along the first dimension."""
    ends = [*cuts, whole_.shape[0]]
    starts = [0, *cuts]
    return [
        Divided(whole_, (a, *[0] * (whole_.ndim - 1)), (b - a, *whole_.shape[1:]))
        for a, b in zip(starts, ends, strict=True)
    ]


def test_a_divided_leaf_is_whole_for_readers(tmp_path):
    """Each rank writes its rows, an empty piece is not written; reading needs no rank."""
    array = np.arange(60, dtype=np.int32).reshape(10, 6)
    pieces = rows(array, [4, 4])
    states = [{"model": {"w": piece, "b": np.ones(4)}, "mine": rank} for rank, piece in enumerate(pieces)]
    checkpoint = agree(tmp_path, states)
    assert sorted(checkpoint.manifest.leaves) == ["@0/model/w", "@2/model/w", "model/b"]
    handle = checkpoint.handles()["model"]["w"]
    assert isinstance(handle, StoredPieces)
    assert ((10, 6), 240, {}) == (handle.shape, handle.size_bytes, handle.attrs)
    assert [((0, 0), (4, 6)), ((4, 0), (6, 6))] == [(piece.at, piece.leaf.shape) for piece in handle.pieces]
    assert bytes(handle.read()) == array.tobytes()
    assert same(whole(states[0]), checkpoint.load(mmap=True))
    assert checkpoint.as_rank(1).handles()["model"]["w"].own is None
    assert checkpoint.as_rank(2).handles()["model"]["w"].own.at == (4, 0)


def test_a_rank_reads_no_more_parts_than_it_needs(tmp_path):
    """Its own piece, and what all have alike, are found without the parts of those that have nothing to do with
    them.
    """
    array = np.arange(4000.0)
    states = [
        {"w": piece, "b": np.ones(4), "own": np.full(3, rank)}
        for rank, piece in enumerate(rows(array, [1000, 2000, 3000]))
    ]
    checkpoint = agree(tmp_path, states)
    assert checkpoint.manifest.leaves["b"].shard.startswith("rank-00002-")
    (checkpoint.path / "rank-00001.json").write_bytes(b"torn")
    view = Checkpoint(checkpoint.path).as_rank(3)
    view.check_layout()
    handles = view.handles()
    assert bytes(handles["w"].own.leaf.read()) == array[3000:].tobytes()
    assert [3, 3, 3] == list(view.load("own"))
    with pytest.raises(StoreError, match="rank-00001"):
        handles["w"].read()


def test_pieces_may_be_boxes_and_have_copies(tmp_path):
    """Two dimensions divided over four ranks, and each piece on a second rank that does not write it."""
    array = np.arange(7 * 9, dtype=np.float64).reshape(7, 9)
    places = [((0, 0), (4, 5)), ((0, 5), (4, 4)), ((4, 0), (3, 5)), ((4, 5), (3, 4))]
    states = [{"w": Divided(array, at, shape)} for at, shape in places]
    states += [{"w": Divided(array, at, shape, spare=rank)} for rank, (at, shape) in enumerate(places)]
    checkpoint = agree(tmp_path, states)
    assert [f"@{rank}/w" for rank in range(4)] == sorted(checkpoint.manifest.leaves)
    assert all("spare" not in leaf.attrs for leaf in checkpoint.manifest.leaves.values())
    for rank in (1, 2, 3):
        (checkpoint.path / f"rank-0000{rank}.json").write_bytes(b"torn")
    handle = Checkpoint(checkpoint.path).as_rank(4).leaf("w")  # needs no more than its own part and its twin's
    assert handle.own.box == Box(*places[0])
    assert bytes(handle.own.leaf.read()) == np.ascontiguousarray(array[:4, :5]).tobytes()


def otherwise():
    """A leaf that one rank has otherwise is its own; all others share rank 0's. The last digit is enough."""
    states = [{"model": {"w": np.arange(1000.0), "b": np.ones(3)}} for _ in range(3)]
    states[2]["model"]["w"] = np.nextafter(states[2]["model"]["w"], 1e9)
    return states


def copies():
    """Where a mesh is a part of a larger one, its tensors do not know that its neighbours hold the same."""
    array, late = np.arange(10.0), np.arange(6.0)
    pieces = rows(array, [6])
    states = [{"w": piece, "b": 1} for piece in (*pieces, *pieces)]
    for rank, at in ((1, 0), (2, 0), (3, 3)):
        states[rank]["late"] = Divided(late, (at,), (3,))
    return states


def empty(*shape):
    return [{"w": Divided(np.zeros(shape, np.float32), [0] * len(shape), shape)} for _ in range(2)]


WRITERS = {  # what the ranks have -> which of them writes what
    "otherwise": (otherwise(), ["@2/model/w", "model/b", "model/w"]),
    "the first of several": (copies(), ["@0/w", "@1/late", "@1/w", "@3/late"]),
    "nothing": (empty(0), ["@0/w", "@1/w"]),
    "no row": (empty(0, 5), ["@0/w", "@1/w"]),
    "no column": (empty(5, 0), ["@0/w", "@1/w"]),
    "a layer that rank 0 lacks": (
        [{"a": 1}, *({"a": 1, "w": each} for each in rows(np.arange(12.0), [5]))],
        ["@1/w", "@2/w"],
    ),
}


@pytest.mark.parametrize("what", WRITERS)
def test_each_leaf_is_written_once_and_by_whom_it_should(tmp_path, what):
    """Each rank's own leaves by that rank, what several have by the first of them; a leaf without bytes comes back."""
    states, leaves = WRITERS[what]
    assert leaves == sorted(agree(tmp_path, states).manifest.leaves)


NO_WHOLE: list[list[Any]] = [
    [Divided(np.arange(10.0), (0,), (5,)), Divided(np.arange(10.0), (5,), (4,))],  # a hole
    [Divided(np.arange(10.0), (0,), (5,)), Divided(np.arange(10.0), (4,), (6,))],  # an overlap
    [Divided(np.arange(10.0), (0,), (5,)), Divided(np.arange(11.0), (5,), (6,))],  # of another whole
    [Divided(np.arange(10.0), (0,), (10,)), np.arange(10.0)],  # whole on one rank
    [np.arange(10.0), Divided(np.arange(10.0), (0,), (10,))],
    [5, Divided(np.arange(10.0), (0,), (9,))],
]


def test_pieces_that_make_no_whole_are_refused(tmp_path):
    """On every rank, and nothing is committed: it could not be read."""
    for states in NO_WHOLE:
        outcomes = saved(tmp_path, [{"model": {"w": each}} for each in states])
        assert [UsageError] * 2 == kinds(outcomes)
        assert all("model/w" in str(each) for each in outcomes)
    assert not Store(tmp_path).checkpoints()


@given(st.data())
def test_boxes_lie_where_their_items_do(data):
    """`stretches` says of every byte of a box where it is in the whole, as NumPy does."""
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=0, max_size=4)))
    starts = [data.draw(st.integers(0, extent - 1)) for extent in shape]
    extents = [data.draw(st.integers(0, extent - start)) for start, extent in zip(starts, shape, strict=True)]
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int16).reshape(shape)
    index = tuple(slice(a, a + n) for a, n in zip(starts, extents, strict=True))
    expected, found, raw = np.ascontiguousarray(array[index]).tobytes(), bytearray(), array.tobytes()
    for start, offset, size in boxes.byte_ranges(shape, Box(tuple(starts), tuple(extents)), 2):
        assert offset == len(found)
        found += raw[start : start + size]
    assert bytes(found) == (expected if np.prod(extents) else b"")


@given(st.data())
def test_only_tiles_are_tiled(data):
    """Cuts of a box in any order, at any depth, tile it; one moved, left out or doubled does not."""
    shape = tuple(data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    tiles = [Box((0,) * len(shape), shape)]
    for _ in range(data.draw(st.integers(0, 6))):
        box = tiles.pop(data.draw(st.integers(0, len(tiles) - 1)))
        axis = data.draw(st.integers(0, len(shape) - 1))
        cut = data.draw(st.integers(0, box.shape[axis]))
        low, high = list(box.shape), list(box.shape)
        low[axis], high[axis] = cut, box.shape[axis] - cut
        at = list(box.at)
        at[axis] += cut
        tiles += [Box(box.at, tuple(low)), Box(tuple(at), tuple(high))]
    assert boxes.is_tiled(shape, tiles)
    full = [box for box in tiles if box.volume]
    assert not boxes.is_tiled(shape, full[1:])
    assert not boxes.is_tiled(shape, [*full, full[0]])
    moved = full[0]._replace(at=(full[0].at[0] + 1, *full[0].at[1:]))
    assert not boxes.is_tiled(shape, [moved, *full[1:]])


def test_a_divided_leaf_is_read_into_memory_of_any_order(tmp_path):
    """Also where the target is no stretch of the host's memory: as a tensor on a device, or an array in Fortran
    order.
    """
    array = np.arange(60, dtype=np.int32).reshape(10, 6)
    columns = [Divided(array, (0, at), (10, 3)) for at in (0, 3)]
    agree(tmp_path, [{"rows": row, "columns": column} for row, column in zip(rows(array, [4]), columns, strict=True)])
    handles = Store(tmp_path).latest().handles()
    targets = {name: np.zeros((10, 6), np.int32, order="F") for name in handles}
    wanted = [(handles[name], DistantBytes(_StridedItems(target), target.nbytes)) for name, target in targets.items()]
    codec.read_into_memory(wanted)
    assert all(np.array_equal(array, target) for target in targets.values())


# -- what fails ------------------------------------------------------------------------------------------------------


def test_ranks_whose_shares_do_not_fit_together_write_nothing(tmp_path, monkeypatch):
    """What all of them need is asked for at once: NoSpace on each, before the first byte."""
    states = [state(rank, 100_000) for rank in range(3)]
    need = sum(array.nbytes for array in states[0]["model"].values())
    monkeypatch.setattr(disk, "free_bytes", lambda _: need)
    outcomes = saved(tmp_path, states)
    assert [NoSpace] * 3 == kinds(outcomes)
    assert "nothing was written" in str(outcomes[2])


def gives_way(phase):
    """`Abandoned` is no error of the store's, and is told as what it is."""

    def give_way():
        raise SaveAbandoned("for a newer one")

    def work(store):
        put(store, state(store.ranks.rank), 2, **({phase: give_way} if store.ranks.rank == 1 else {}))

    return work


def changes(store):
    """What was compared is what is written."""
    mine = state(store.ranks.rank)
    staged = stage(store, mine)

    def act(call, perform):
        if call.name == "create" and "rank-00001-" in call.path:
            mine["model"]["mean"][0] += 1
        return perform()

    with door(act):
        store.commit(staged, step=2)


def is_superseded(store):
    """What the successor finds is its own."""
    store.claim()
    if store.ranks.rank == 0:
        claiming.claim(store.root, take_over=True)
    store.ranks.agree("taken")
    put(store, state(store.ranks.rank), 2)


FAILS = {  # what a rank does in the second save -> the error of all, and its words
    "cannot": (
        lambda store: store.save({"a": 1 if store.ranks.rank else print}, step=2),
        UsageError,
        'save state["a"]',
    ),
    "gives way": (gives_way("before_each"), SaveAbandoned, "for a newer one"),
    "gives way at last": (gives_way("before_last"), SaveAbandoned, "for a newer one"),
    "changes": (changes, StoreError, "changed while it was saved"),
    "the same step": (lambda store: put(store, state(store.ranks.rank), 1), UsageError, "already committed"),
    "superseded": (is_superseded, Superseded, "superseded by a later one"),
}


def test_what_fails_on_one_rank_fails_on_all_and_the_old_stands(tmp_path):
    """One error on every rank; nothing is committed, and nothing is left of what they wrote."""
    for name, (work, kind, words) in FAILS.items():
        root = tmp_path / name
        assert not failed(saved(root, [state(rank) for rank in range(3)]))
        outcomes = among(3, root, work)
        assert [kind] * 3 == kinds(outcomes), name
        assert all(words in str(each) for each in outcomes), name
        assert [1] == steps(Store(root)), name
        assert not list(root.glob("attempts/2/step-*")), name


def test_a_rank_that_never_comes_is_named_and_the_old_stands(tmp_path):
    """The others learn it in time; nothing is left of what they wrote."""
    saved(tmp_path, [state(rank) for rank in range(3)])

    def work(store):
        store.claim()
        return None if store.ranks.rank == 2 else put(store, state(store.ranks.rank), 2)

    outcomes = among(3, tmp_path, work, timeout_s=1.0)
    assert [RanksError, RanksError, type(None)] == kinds(outcomes)
    assert "rank 2 did not come" in str(outcomes[0])
    assert [1] == steps(Store(tmp_path))
    assert not list((tmp_path / "attempts").glob("*/step-*"))


def test_ranks_in_different_directories_are_told(tmp_path, monkeypatch):
    """Another run's directory, or none: one error on every rank, which names rank, place and host."""
    monkeypatch.setattr(attempts, "JOIN_S", 0.2)
    Store(tmp_path / "other").save({"a": 1}, step=1)
    for place in (tmp_path / "other", tmp_path / "empty"):

        def work(ranks, place=place):
            return CollectiveStore(place if ranks.rank == 2 else tmp_path / "run", ranks=ranks, take_over=True).claim()

        outcomes = everywhere(3, work)
        assert [UsageError] * 3 == kinds(outcomes)
        assert all(f"rank 2 does not see what rank 0 does: {place} on " in str(each) for each in outcomes)


def test_only_rank_0_writes_a_journal(tmp_path):
    """The others' calls do nothing; their attempt is the same one."""

    def work(store):
        attempt = store.claim()
        attempt.record("told", what=f"by {store.ranks.rank}")
        attempt.flush(sync=True)
        attempt.flush_unless_busy()
        attempt.close("end", step=0)
        return attempt.number, attempt.run, attempt.room

    outcomes = among(3, tmp_path, work)
    assert 1 == len(set(outcomes))
    assert ["begin", "told", "end"] == [line["event"] for line in journal.read(outcomes[0][2] / "attempt-1.jsonl")]


def test_a_refused_claim_is_refused_on_all(tmp_path):
    """A stranger that may live, for one."""
    Store(tmp_path).save({"a": 1}, step=1)
    outcomes = among(2, tmp_path, CollectiveStore.claim)
    assert [UsageError] * 2 == kinds(outcomes)
    assert all("may still be running" in str(each) for each in outcomes)


# -- loading together ------------------------------------------------------------------------------------------------


def loaded(root, world, step=None):
    return among(world, root, lambda store: store.load(step))


def test_ranks_load_together_what_each_of_them_saved(tmp_path):
    """The newest, or a step's; a further rank gets rank 0's."""
    for step in (1, 2):
        saved(tmp_path, [state(rank, step=step) for rank in range(3)], step=step)
    for step, asked in ((2, None), (1, 1), (2, 2)):
        for rank, found in enumerate(loaded(tmp_path, 4, asked)):
            assert same(state(rank if rank < 3 else 0, step=step), found)


@pytest.mark.parametrize("rank", [0, 2])
def test_what_is_damaged_for_one_rank_is_passed_over_by_all(tmp_path, rank):
    """Nobody goes on from another checkpoint than the others; where none is whole, all are told the same."""
    for step in (1, 2):
        saved(tmp_path, [state(each, step=step) for each in range(3)], step=step)
    (tmp_path / f"checkpoints/step-000000002/rank-0000{rank}.json").write_bytes(b"{}")
    for each, found in enumerate(loaded(tmp_path, 3)):
        assert same(state(each, step=1), found)
    assert [Damaged] * 3 == kinds(loaded(tmp_path, 3, 2))
    (tmp_path / f"checkpoints/step-000000001/rank-0000{rank}.json").write_bytes(b"{}")
    assert [Damaged] * 3 == kinds(loaded(tmp_path, 3))


def test_where_there_is_nothing_all_ranks_are_told(tmp_path):
    """NotFound, of the newest and of a step."""
    assert [NotFound] * 6 == kinds([*loaded(tmp_path, 3), *loaded(tmp_path, 3, 7)])


# -- what rank 0 does ------------------------------------------------------------------------------------------------


def test_the_rule_is_applied_after_every_rank_has_read_back(tmp_path):
    """And nothing goes when a rank finds its own files damaged on the medium."""

    def work(store):
        for step in (1, 2):
            put(store, state(store.ranks.rank), step)
        return steps(store)

    assert [[2]] * 3 == among(3, tmp_path, work, keep=Last(1))

    def spoil(store):
        staged = stage(store, state(store.ranks.rank))

        def spoilt():
            for path in store.claim().room.glob("step-*/rank-00001-model.safetensors"):
                flip(path)

        store.commit(staged, step=9, before_last=spoilt if store.ranks.rank == 1 else lambda: None)

    outcomes = among(3, tmp_path, spoil, keep=Last(1), take_over=True)
    assert ["Damaged"] * 3 == [each.__name__ for each in kinds(outcomes)]
    assert "rank-00001-model.safetensors" in str(outcomes[0])
    assert [2, 9] == steps(Store(tmp_path))


def test_pruning_and_quarantine_are_rank_0s(tmp_path):
    """The others return with nothing done."""

    def work(store):
        for step in (1, 2, 3):
            put(store, state(store.ranks.rank), step)
        store.pin(2)
        store.unpin(2)
        if store.ranks.rank:  # on a network file system it may not see that checkpoint yet
            store.pin(9)
            store.unpin(9)
        removed = [checkpoint.path.name for checkpoint in store.prune(Last(2))]
        second = store[2]
        store.ranks.agree("pruned")
        store.quarantine(second, "test")
        store.ranks.agree("moved")
        return removed, steps(store)

    assert [(["step-000000001"], [3]), ([], [3]), ([], [3])] == among(3, tmp_path, work)
    assert [UsageError] * 2 == kinds(among(2, tmp_path, lambda store: store.directory(step=9)))


def test_one_process_goes_on_from_what_several_saved(tmp_path):
    """A store alone saves over it, in its own format, and the other way round."""
    saved(tmp_path, [state(rank) for rank in range(3)])
    alone = Store(tmp_path)
    alone.save(alone.load(), step=2)
    alone.close()
    assert not failed(saved(tmp_path, [state(rank) for rank in range(2)], step=3))
    assert [3, 1, 2] == [checkpoint.world for checkpoint in Store(tmp_path).checkpoints()]
    assert same(state(0), Store(tmp_path).load(step=2))


def test_a_snapshot_is_written_like_what_it_copies(tmp_path):
    """With an arena the loop may go on at once, on every rank."""
    array = np.arange(3000.0)

    def work(store):
        rank, arena = store.ranks.rank, Arena()
        for step in (1, 2, 3):  # from the second on the files are laid out as they will be
            mine = {**state(rank, step=step), "w": rows(array, [1000, 2000])[rank]}
            if step == 3 and rank == 1:  # but not these
                mine["model"]["layer3"] += 1
            staged = stage(store, mine, arena)
            for layer in mine["model"].values():
                layer[:] = -1
            store.commit(staged, step=step)

    assert not failed(among(3, tmp_path, work))
    for step in (1, 2, 3):
        for rank in range(3):
            expected = {**state(rank, step=step), "w": array}
            if step == 3 and rank == 1:
                expected["model"]["layer3"] += 1
            assert same(expected, read(Store(tmp_path)[step], rank))


@pytest.mark.parametrize("whole_copy", [True, False])
def test_a_save_begins_when_the_snapshot_is_copied(tmp_path, whole_copy):
    """What is compared has to be there; a copy that is given up ends the save, on all ranks."""

    def work(store):
        staged = store.lay_out(state(store.ranks.rank), Arena())
        copying = threading.Timer(0.2, staged.snapshot.copy if whole_copy else staged.snapshot.abandon)
        copying.start()
        try:
            store.commit(staged, step=1)
        finally:
            copying.join()

    outcomes = among(2, tmp_path, work)
    assert ([type(None)] if whole_copy else [SaveAbandoned]) * 2 == kinds(outcomes)
    for rank in range(2 if whole_copy else 0):
        assert same(state(rank), read(Store(tmp_path).latest(), rank))


def test_where_a_leaf_lived_makes_it_no_ranks_own(tmp_path):
    """Each rank has a device of its own; the bytes and all else decide."""

    def work(store):
        staged = store.stage({"a": np.ones(5), "b": np.ones(5)})
        for key, name in (("a", "device"), ("b", "order")):
            block = staged.leaves[key]
            staged.leaves[key] = replace(block, attrs={**block.attrs, name: f"cuda:{store.ranks.rank}"})
        store.commit(staged, step=1)

    assert not failed(among(2, tmp_path, work))
    assert ["@1/b", "a", "b"] == sorted(Store(tmp_path).latest().manifest.leaves)
