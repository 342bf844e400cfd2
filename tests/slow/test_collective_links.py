"""What did not change since the last checkpoint of several ranks: each takes over the files that it wrote itself."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collective import Divided, among, failed, read, same, small, stage, whole
from faults import scratched
from holdfast.collective.division import assign_linked, run_starts
from holdfast.rules import Every, Last, Whole
from holdfast.run.run import Run
from holdfast.state.snapshot import Arena
from holdfast.store import shards
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.store import Store
from run_ranks import among_threads
from stores import flip

THIRD = ["step-000000003"] * 2
B_STEADY = "rank-00001-b-steady.safetensors"


@pytest.fixture(autouse=True)
def _small():
    with small():
        yield


def course(root, world, give, steps, *, before=lambda step: None, parents=(), snapshots=False, ahead="", **options):
    """Saves of all ranks, one after the other. `parents`: of the first, for each rank; `before`: done alone, before
    each.

    `ahead`: files whose names end so are read back before the first save.
    """

    def work(store):
        ranks = store.ranks
        store.parent = parents[ranks.rank] if parents else None
        arena = Arena() if snapshots else None
        if ahead:
            found = [link for link in store.unread() if link.name.endswith(ahead)]
            assert found
            assert store.read_back_early(found) is None
        for step in steps:
            with ranks.together(f"before {step}"):
                if ranks.rank == 0:
                    before(step)
            store.commit(stage(store, give(ranks.rank, step), arena), step=step)
        store.close()

    assert not failed(among(world, root, work, take_over=True, **options))


def agree(root, world, give, steps):
    """Each rank reads what it gave in each of the steps, and all of it is whole on the medium."""
    for step in steps:
        checkpoint = Store(root)[step]
        assert checkpoint.world == world
        assert not list(checkpoint.problems(cold=True))
        for rank in range(world):
            assert same(whole(give(rank, step)), read(checkpoint, rank))


def shared(root, step):
    """The numbers of the ranks that have a file in that checkpoint which lies in another one, too."""
    files = [file for file in Store(root)[step].path.iterdir() if file.stat().st_nlink > 1]
    return sorted({int(file.name.split("-")[1]) for file in files})


def taken(root, step):
    """What that checkpoint has taken over from the one before."""
    files = Store(root)[step].manifest.files
    return sorted(name for name, file in files.items() if file.links)


def takers(root, step):
    """The ranks that have taken over a file."""
    return {int(name.split("-")[1]) for name in taken(root, step)}


def holder(root, step, key):
    """The file in which a leaf lies."""
    checkpoint = Store(root)[step]
    return checkpoint.path / checkpoint.manifest.leaves[key].shard


def written(root, step):
    """By rank, bytes that were written for that checkpoint."""
    checkpoint = Store(root)[step]
    found = dict.fromkeys(range(checkpoint.world), 0)
    for name, file in checkpoint.manifest.files.items():
        if not file.links:
            found[int(name.removesuffix(".json").split("-")[1])] += file.size_bytes
    return found


BACKBONE = [np.random.default_rng(layer).standard_normal((100, 1000)) for layer in range(8)]


def lora(world, divided):
    """Frozen layers with a trained adapter after each: 99% of the bytes never change."""

    def piece(array, rank):
        rows = np.array_split(np.arange(len(array)), world)[rank]
        return Divided(array, (int(rows[0]), 0), (len(rows), array.shape[1])) if divided else array

    def give(rank, step):
        adapters = [layer[:, :10] + step for layer in BACKBONE]
        model = {f"{n}.weight": piece(layer, rank) for n, layer in enumerate(BACKBONE)}
        model |= {f"{n}.adapter": piece(layer, rank) for n, layer in enumerate(adapters)}
        return {"model": model, "rank": rank, "rng": np.arange(rank, rank + 10)}

    return give


@pytest.mark.parametrize("divided", [False, True], ids=["replicated", "divided"])
@pytest.mark.parametrize("world", [2, 4])
def test_from_the_third_save_on_only_what_changes_is_written(tmp_path, world, divided):
    """99% frozen, interleaved layer by layer with what is trained, alike on all ranks or in pieces: at most 1.5% of the
    bytes, parts and manifest included.
    """
    give = lora(world, divided)
    course(tmp_path, world, give, range(1, 5))
    total = 1.01 * sum(layer.nbytes for layer in BACKBONE)
    for step in (3, 4):
        path = Store(tmp_path)[step].path
        assert sum(written(tmp_path, step).values()) + (path / "manifest.json").stat().st_size <= 0.015 * total
        assert shared(tmp_path, step) == [*range(world)]
        assert Store(tmp_path)[step].size_bytes > total
    agree(tmp_path, world, give, range(1, 5))


def backbone(rank, step):
    """What is frozen comes first, in the order of the keys, and then all that is trained, as an optimizer's moments
    do.
    """
    model = {f"layer{n}": layer[:50] for n, layer in enumerate(BACKBONE)}
    moments = {f"{n}": layer[:10] + step for n, layer in enumerate(BACKBONE)}
    return {"model": model, "optimizer": moments, "rank": rank}


def test_what_changes_is_divided_evenly_whoever_holds_the_rest(tmp_path):
    """Each rank goes on holding what it wrote of the frozen part, and all write as much of the other."""
    course(tmp_path, 4, backbone, range(1, 6))
    for step in (3, 4, 5):
        sizes = written(tmp_path, step)
        assert max(sizes.values()) <= 1.3 * min(sizes.values())
        assert taken(tmp_path, step) == taken(tmp_path, 3)
    assert shared(tmp_path, 5) == [0, 1, 2, 3]
    assert any(len(entry.firsts) > 1 for entry in Store(tmp_path)[5].head.ranks)
    agree(tmp_path, 4, backbone, (3, 4, 5))


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_whatever_changes_when_each_checkpoint_holds_its_own_state(data):
    """Leaves that freeze, thaw, come, go and become one rank's own; damage, restarts and other numbers of ranks in
    between:
    each rank finds in every checkpoint what it gave.
    """
    names = [str(n) for n in range(6)]
    values = st.dictionaries(st.sampled_from(names), st.integers(0, 1), min_size=3)
    odd = st.dictionaries(st.sampled_from(names), st.integers(0, 2), max_size=2)
    with scratched("links") as base:
        parent, step, made = None, 0, []
        for _ in range(data.draw(st.integers(1, 3))):
            world = data.draw(st.integers(2, 3))
            states = data.draw(st.lists(st.tuples(values, odd), min_size=1, max_size=5))
            steps = range(step + 1, step + 1 + len(states))

            def give(rank, step, states=states, first=steps[0], world=world):
                value, own = states[step - first]
                state = {name: np.full(700 + int(name), each) for name, each in value.items()}
                state |= {f"own{name}": np.full(600, rank if who == rank else 9) for name, who in own.items()}
                piece = np.arange(900) + len(value)
                return {"a": state, "b": Divided(piece, (rank * 900 // world,), (900 // world,))}

            course(
                base, world, give, steps, parents=[parent] * world, snapshots=data.draw(st.booleans()),
                whole=Whole(checkpoints=data.draw(st.integers(1, 4))),
            )  # fmt: skip
            step, made = steps[-1], [*made, (world, give, steps)]
            parent = f"step-{step:09d}"
        for each in made:
            agree(base, *each)


def test_a_run_that_goes_on_takes_over_what_it_wrote(tmp_path):
    """The first save after a restart of as many ranks shares with the checkpoint from which they began."""
    give = lora(2, divided=False)
    course(tmp_path, 2, give, range(1, 4))
    course(tmp_path, 2, give, range(4, 6), parents=THIRD)
    assert taken(tmp_path, 3) == taken(tmp_path, 4) == taken(tmp_path, 5)
    assert "step-000000002" == Store(tmp_path)[5].manifest.files[taken(tmp_path, 5)[0]].origin
    agree(tmp_path, 2, give, range(1, 6))


def test_another_number_of_ranks_writes_everything_anew(tmp_path):
    """Once; from then on it shares with its own."""
    for before, after in ((3, 2), (2, 3), (1, 2), (2, 1)):
        root = tmp_path / f"{before}-{after}"
        course(root, before, backbone, range(1, 4))
        course(root, after, backbone, range(4, 7), parents=THIRD[:1] * after)
        assert [] == taken(root, 4)
        assert taken(root, 6)
        agree(root, after, backbone, range(4, 7))


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_damaged_file_is_written_anew_by_its_rank(tmp_path, snapshots):
    """Nobody else has to know, also when what it has is a copy in memory; the others share on."""
    give = lora(3, divided=False)

    def before(step):
        if step == 4:
            flip(Store(tmp_path)[3].path / "rank-00001-model-steady.safetensors")

    course(tmp_path, 3, give, range(1, 6), before=before, snapshots=snapshots)
    assert {0, 2} == takers(tmp_path, 4)
    assert {0, 1, 2} == takers(tmp_path, 5)
    agree(tmp_path, 3, give, (4, 5))


def two_files(rank, step):
    """Each of two ranks has two files of which most never changes."""
    rows = {name: Divided(array, (50 * rank, 0), (50, 1000)) for name, array in zip("ab", BACKBONE, strict=False)}
    moves = Divided(np.full((10, 10), step), (5 * rank, 0), (5, 10))
    return {name: {"w": rows[name], "moves": moves} for name in "ab"}


def test_a_file_that_was_linked_before_another_turns_out_damaged_is_written_too(tmp_path):
    """In its own place: nobody writes into a file that older checkpoints have. A file read back ahead is linked
    first.
    """
    course(tmp_path, 2, two_files, range(1, 4))
    flip(Store(tmp_path)[3].path / B_STEADY)
    course(tmp_path, 2, two_files, [4], parents=THIRD, ahead="a-steady.safetensors")
    assert ["rank-00000-a-steady.safetensors", "rank-00000-b-steady.safetensors"] == taken(tmp_path, 4)
    agree(tmp_path, 2, two_files, [1, 4])
    assert [B_STEADY] == [problem.path.name for problem in Store(tmp_path)[3].problems(cold=True)]


def test_what_was_written_in_a_linked_file_s_place_is_read_back(tmp_path, monkeypatch):
    """Before an older checkpoint goes: that its name was read for a link says nothing of what was written then."""
    course(tmp_path, 2, two_files, range(1, 4))
    flip(Store(tmp_path)[3].path / B_STEADY)
    read, problems = [], Checkpoint.problems

    def noted(self, **options):
        if self.path.name == "step-000000004":
            read.extend(options.get("only") or ())
        return problems(self, **options)

    monkeypatch.setattr(Checkpoint, "problems", noted)
    course(tmp_path, 2, two_files, [4], parents=THIRD, keep=Last(1))
    assert {"rank-00001-a-steady.safetensors", B_STEADY} <= set(read)


def test_a_part_that_is_gone_costs_its_rank_the_bytes(tmp_path):
    """Whoever needs it to know what it wrote."""
    give = lora(2, divided=False)
    course(tmp_path, 2, give, range(1, 4))
    (Store(tmp_path)[3].path / "rank-00001.json").unlink()
    course(tmp_path, 2, give, [4], parents=THIRD)
    assert {0} == takers(tmp_path, 4)
    agree(tmp_path, 2, give, [4])


def test_ranks_need_not_agree_on_the_checkpoint_before(tmp_path):
    """Each takes over from what it takes for the last one; nobody waits for anybody, and all is there."""
    course(tmp_path, 2, backbone, range(1, 4))
    several: list[list[int | None]] = [[None, 3], [3, None], [3, 2], [2, 3]]
    for step, parents in enumerate(several, 4):
        course(tmp_path, 2, backbone, [step], parents=[each and f"step-{each:09}" for each in parents])
        assert taken(tmp_path, step), parents
        agree(tmp_path, 2, backbone, [step])


@given(st.lists(st.lists(st.integers(0, 9), unique=True).map(sorted), max_size=4), st.sets(st.integers(0, 9)))
def test_what_several_claim_the_first_holds(claimed, differing):
    """Everything that is claimed has one holder, who claimed it; what is not alike everywhere may only be rank 0's."""
    found = assign_linked(claimed, differing)
    held = [place for places in found.values() for place in places]
    assert len(held) == len(set(held))
    assert all(set(places) <= set(claimed[rank]) for rank, places in found.items())
    assert all(rank == 0 or differing.isdisjoint(places) for rank, places in found.items())
    assert set(held) >= {place for places in claimed for place in places} - differing


@given(st.lists(st.integers(0, 3), max_size=12))
def test_whose_a_key_is_follows_from_where_runs_begin(owners):
    """The last beginning that is not after the key, whichever rank's, is its owner's."""
    keys = [f"{number:02}" for number in range(len(owners))]
    found = []
    for rank in range(4):
        mine = {key for key, owner in zip(keys, owners, strict=True) if owner == rank}
        found += [(key, rank) for key in run_starts(keys, mine)]
    for key, owner in zip(keys, owners, strict=True):
        assert owner == max(each for each in found if each[0] <= key)[1]


def test_files_are_written_anew_every_so_many_checkpoints(tmp_path):
    """By the rank that holds them; then they are shared again."""
    course(tmp_path, 2, backbone, range(1, 10), whole=Whole(checkpoints=3))
    for name in ("layer0", "layer7"):
        shards = [holder(tmp_path, step, f"model/{name}") for step in range(1, 10)]
        assert 1 == len({shard.name.split("-")[1] for shard in shards})
        runs = [len(list(group)) for _, group in itertools.groupby(shard.stat().st_ino for shard in shards)]
        assert 3 == max(runs)
        assert len(runs) <= 4


def test_what_is_written_beside_what_is_shared_lies_in_the_snapshot_as_its_files(tmp_path, monkeypatch):
    """From the fourth save on, by which each rank knows what it will share: nothing is gathered leaf by leaf."""
    found, write = [], shards.write_shard

    def told(path, staged, *rest):
        found.append((int(path.name.split("-")[1]), staged.snapshot is not None))
        return write(path, staged, *rest)

    monkeypatch.setattr(shards, "write_shard", told)
    course(tmp_path, 2, lora(2, divided=True), range(1, 6), snapshots=True)
    assert {True} == {whole for step, whole in found if step > 3}


def test_what_moves_to_another_rank_is_still_known_as_frozen(tmp_path):
    """Files of one rank are due while those of the other are not: the load is even, and all is shared with the next
    save.
    """

    def before(step):
        if step == 4:
            flip(holder(tmp_path, 3, "model/layer7"))

    course(tmp_path, 2, backbone, range(1, 8), before=before, whole=Whole(checkpoints=5))
    assert ["00000", "00001"] == [holder(tmp_path, step, "model/layer3").name.split("-")[1] for step in (5, 6)]
    sizes = written(tmp_path, 6)
    assert max(sizes.values()) <= 1.6 * min(sizes.values())
    assert sum(written(tmp_path, 7).values()) <= 0.18 * Store(tmp_path)[7].size_bytes
    agree(tmp_path, 2, backbone, range(4, 8))


def test_a_leaf_that_becomes_one_rank_s_own_leaves_its_file(tmp_path):
    """Whoever held it for all writes the other leaves of that file anew, and when all have it alike again, it is
    shared again.
    """

    def give(rank, step):
        layers = {f"{n}": layer[:5] + (rank == 2 and step == 4 and n == 3) for n, layer in enumerate(BACKBONE[:6])}
        return {"model": layers, "step": np.array(step)}

    course(tmp_path, 3, give, range(1, 8))
    assert {"00001"} == {holder(tmp_path, 3, f"model/{n}").name.split("-")[1] for n in (2, 3)}
    assert {0, 2} == takers(tmp_path, 4)
    assert {0, 1, 2} == takers(tmp_path, 7)
    agree(tmp_path, 3, give, range(3, 8))


def test_nothing_is_shared_with_a_pinned_checkpoint(tmp_path):
    """Pinning gives it files of its own, each rank's; the next save writes everything."""
    give = lora(2, divided=False)

    def before(step):
        if step == 5:
            Store(tmp_path).pin(4)

    course(tmp_path, 2, give, range(1, 8), before=before)
    assert [] == shared(tmp_path, 4)
    assert [] == taken(tmp_path, 5)
    assert taken(tmp_path, 7)
    agree(tmp_path, 2, give, range(3, 8))


def test_what_is_shared_needs_no_space(tmp_path, monkeypatch):
    """A disk with room for what changes is large enough."""
    from holdfast import disk

    course(tmp_path, 2, backbone, range(1, 4))
    changing = sum(written(tmp_path, 3).values())
    monkeypatch.setattr(disk, "free_bytes", lambda _: 3 << 20)
    assert changing < 2 << 20 < Store(tmp_path)[3].size_bytes
    course(tmp_path, 2, backbone, [4], parents=THIRD)
    agree(tmp_path, 2, backbone, [4])


# A run --------------------------------------------------------------------------------------------------------------


class Frozen:
    """Two big arrays that stay, and what changes."""

    def __init__(self, rank):
        self.big, self.small, self.rank = {name: np.arange(10_000.0) for name in "ab"}, np.zeros(3), np.array([rank])

    def state_dict(self):
        return {**self.big, "small": self.small, "rank": self.rank}

    def load_state_dict(self, state):
        self.small, self.rank = state["small"], state["rank"]


def trained(path, rank, steps):
    part = Frozen(rank)
    with Run(path, {"part": part}, every=Every(steps=1), keep=Last(9), whole=Whole(checkpoints=3)) as run:
        began, rejected = run.step, dict(run._last_session().origin.rejected)
        for _ in run.steps(steps):
            part.small = part.small + 1
            run.wait()
    return began, rejected, part.small.tolist(), int(part.rank[0])


def test_who_shares_a_rank_s_damaged_file_is_known_without_reading_it(tmp_path, monkeypatch):
    """A run of several ranks goes straight to the newest checkpoint that does not hold the file, and to the same
    end.
    """
    among = among_threads(monkeypatch)
    assert not failed(among(2, lambda rank: trained(tmp_path, rank, 6)))
    store = Store(tmp_path)
    name = "rank-00001-part-steady.safetensors"
    inode = (store[6].path / name).stat().st_ino
    sharing = [c.step for c in store.checkpoints() if inode in {file.stat().st_ino for file in c.path.iterdir()}]
    assert 2 <= len(sharing) <= 3
    flip(store[6].path / name)
    assert {f"step-{step:09d}" for step in sharing[:-1]} == store.sharing_damage(store[6]).keys()
    outcomes = among(2, lambda rank: trained(tmp_path, rank, 8))
    assert not failed(outcomes)
    for rank, (began, _, last, own) in enumerate(outcomes):
        assert (sharing[0] - 1, [8.0] * 3, rank) == (began, last, own)
    assert f"shares {name} with step-000000006" in outcomes[0][1][f"step-{sharing[0]:09d}"]
