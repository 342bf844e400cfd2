"""A manifest's leaves are decoded once by whoever needs them: not anew for each file that is read back or linked."""

import errno
from collections import Counter

import numpy as np
import pytest

from collective import failed
from faults import links
from holdfast import Every, Last, Run, Store
from holdfast.collective import division
from holdfast.collective.store import CollectiveStore
from holdfast.errors import Damaged, StoreError
from holdfast.store import format, parts, pruning, reading, source
from holdfast.store.checkpoint import Checkpoint
from rank_threads import everywhere
from stores import flip
from unchanged import Frozen, rest, same, shared

FILES = 6  # shards that do not change
COUNT = 6  # saves


@pytest.fixture(autouse=True)
def _small():
    with links():
        yield
    rest()


@pytest.fixture
def decoded(monkeypatch):
    """How often each manifest and each part was decoded, and each file was read back."""
    seen = Counter()

    def counted(module, name):
        real = getattr(module, name)

        def decode(data, *more):
            seen[name if module is format else "part"] += 1
            return real(data, *more)

        monkeypatch.setattr(module, name, decode)

    def damaged(stored, real=reading.find_damaged, **more):
        seen["files read"] += bool(more["cold"]) * len({leaf.path for leaf in stored})
        return real(stored, **more)

    counted(format, "decode")
    counted(parts, "decode")
    monkeypatch.setattr(reading, "find_damaged", damaged)
    return seen


def objects():
    return {f"part{number}": Frozen() for number in range(FILES)}


def train(path, tracked, until, **options):
    with Run(path, tracked, every=Every(steps=1), **options) as run:
        for _ in run.steps(until):
            run.wait()
            rest()
            for each in tracked.values():
                each.small += 1


def test_a_run_decodes_the_manifest_that_it_restores_and_no_other(tmp_path, decoded):
    """Its saves link many files, read them back beside the loop and in the last save, and remove checkpoints."""
    train(tmp_path, objects(), COUNT, keep=Last(2))
    assert decoded["files read"] >= FILES * (COUNT - 2)
    assert decoded["decode"] == 0
    assert len(shared(Store(tmp_path).latest().path)) >= FILES
    decoded.clear()
    found = objects()
    train(tmp_path, found, 2 * COUNT, keep=Last(2))
    assert decoded["files read"] >= FILES * (COUNT - 1)
    assert decoded["decode"] == 1
    assert all(
        same(each.state_dict(), {"big": np.arange(10_000.0), "small": np.full(3, 2.0 * COUNT)})
        for each in found.values()
    )


def test_a_store_decodes_none_of_its_own_and_a_load_one(tmp_path, decoded):
    """Synchronous saves read each file as they link it."""
    store = Store(tmp_path)
    frozen = {f"part{number}": {"big": np.arange(2_000.0) + number} for number in range(FILES)}
    for step in range(1, COUNT + 1):
        store.save({**frozen, "own": np.full(3, step)}, step=step)
    assert decoded["files read"] >= FILES * (COUNT - 2)
    assert decoded["decode"] == 0
    store.load()
    assert decoded["decode"] == 1
    store.close()


def test_of_several_ranks_each_decodes_what_it_loads_once(tmp_path, decoded, monkeypatch):
    """A load decodes the manifest, which has no leaves, and the parts that it needs; saves and reads decode none."""
    monkeypatch.setattr(division, "SHARE_BYTES", 1)
    frozen = {f"layer{number}": np.arange(2_000.0) + number for number in range(8)}

    def work(ranks):
        store = CollectiveStore(tmp_path, ranks=ranks, keep=Last(2))
        for step in range(1, COUNT + 1):
            store.save({"frozen": frozen, "own": np.full(3, ranks.rank + step)}, step=step)
            assert store.read_back_early(store.unread()) is None
        store.close()

    def load(ranks):
        found = CollectiveStore(tmp_path, ranks=ranks).load()
        assert same(found["frozen"], frozen)

    assert not failed(everywhere(2, work))
    assert decoded["files read"] >= 2 * (COUNT - 2)
    assert {"decode": 0, "part": 0} == {name: decoded[name] for name in ("decode", "part")}
    assert not failed(everywhere(2, load))
    assert decoded["decode"] == 2
    assert decoded["part"] <= 4


@pytest.mark.parametrize("which", ["manifest.json", "rank-00001.json"])
def test_a_list_that_is_damaged_on_the_medium_is_found_without_decoding_it(tmp_path, decoded, which):
    """What is linked from that checkpoint would be its only whole copy."""
    world = 1 if which == "manifest.json" else 2
    frozen = {"big": np.arange(20_000.0)}
    found = {}

    def work(ranks):
        store = Store(tmp_path) if world == 1 else CollectiveStore(tmp_path, ranks=ranks)
        for step in (1, 2, 3):
            store.save({"frozen": frozen, "own": {"n": np.arange(3000.0) + ranks.rank}, "step": step}, step=step)
        unread = store.unread()
        path = store.latest().path / which
        if ranks.rank == world - 1:
            flip(path)
            assert unread
            found[ranks.rank] = store.read_back_early(unread)
            assert store.unread() == []

    assert not failed(everywhere(world, work))
    assert found[world - 1].path.name == which
    assert decoded["decode"] == decoded["part"] == 0


@pytest.mark.parametrize("which", ["manifest.json", "rank-00001.json"])
def test_a_list_that_is_damaged_after_an_early_read_is_found_before_older_checkpoints_go(tmp_path, which):
    """The early read was for a link. Now the checkpoint becomes the only whole one."""
    world = 1 if which == "manifest.json" else 2
    frozen = {"big": np.arange(20_000.0)}

    def work(ranks):
        store = Store(tmp_path) if world == 1 else CollectiveStore(tmp_path, ranks=ranks)
        for step in (1, 2, 3):
            store.save({"frozen": frozen, "own": {"n": np.arange(3000.0) + ranks.rank}, "step": step}, step=step)
        assert store.read_back_early(store.unread()) is None
        checkpoint = store.latest()
        if ranks.rank == world - 1:
            flip(checkpoint.path / which)
            if world == 1:
                store.prune(Last(1))
            else:
                pruning.read_back(store.claim(), [Checkpoint(checkpoint.path, rank=ranks.rank)], store.sharing)

    outcomes = everywhere(world, work)
    assert isinstance(outcomes[world - 1], Damaged)
    assert which in str(outcomes[world - 1])
    assert len(Store(tmp_path).checkpoints()) == 3


@pytest.mark.parametrize("which", ["rank-00000.json", "rank-00001.json", "rank-00001-own.safetensors"])
def test_a_prune_by_rank_0_reads_what_all_ranks_wrote(tmp_path, which):
    """It knows only its own part of the last checkpoint. Older ones go when the whole of it is sound."""

    def work(ranks):
        store = CollectiveStore(tmp_path, ranks=ranks)
        for step in (1, 2, 3):
            store.save({"own": {"n": np.arange(3000.0) + ranks.rank}, "step": step}, step=step)
        with ranks.together("damage"):
            if ranks.rank == 0:
                flip(store.latest().path / which)
        return store.prune(Last(1))

    damaged, _ = everywhere(2, work)
    assert isinstance(damaged, Damaged)
    assert which in str(damaged)
    assert len(Store(tmp_path).checkpoints()) == 3


def test_a_list_that_may_not_be_read_is_no_damage(tmp_path, monkeypatch):
    store = Store(tmp_path)
    for step in (1, 2, 3):
        store.save({"frozen": {"big": np.arange(20_000.0)}, "step": step}, step=step)

    def denied(path, *most):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(source, "read_whole", denied)
    with pytest.raises(StoreError, match=r"manifest\.json: cannot be read: Permission denied"):
        store.read_back_early(store.unread())
