"""Elastic: a run saved by some number of processes goes on with any other, wrapped in whatever way."""

import shutil
from collections import Counter
from itertools import chain, product

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from holdfast import Store
from holdfast.cli import commands
from rank_training import EPOCHS, LENGTH, differing, trained

pytestmark = [pytest.mark.slow, pytest.mark.ranks]

WORLDS = [1, 2, 3, 4]
CUT = 3  # steps of the first epoch's four


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """For each kind and world the run that was cut, and what its ranks saw and had."""
    known = {}

    def find(kind, world):
        if (kind, world) not in known:
            path = tmp_path_factory.mktemp(f"{kind}-{world}") / "run"
            known[kind, world] = path, trained(world, kind, path, steps=CUT)
        return known[kind, world]

    return find


def resumed(begun, path, kind, world, other_kind, other, **options):
    source, before = begun(kind, world)
    shutil.copytree(source, path, symlinks=True)
    return before, trained(other, other_kind, path, seed=2, **options)


def steps(seen):
    """What all ranks together took in each step."""
    return [(each[0][0], sorted(chain.from_iterable(batch for _, batch in each))) for each in zip(*seen, strict=True)]


def once(ranks):
    """How often each sample was seen in each epoch, by however many processes one after another."""
    return Counter((epoch, number) for rank in ranks for epoch, batch in rank["seen"] for number in batch)


@pytest.mark.parametrize(("kind", "world", "other"), list(product(["ddp", "fsdp"], WORLDS, WORLDS)))
def test_saved_on_some_ranks_restored_on_others(kind, world, other, begun, tmp_path):
    """Tensors are identical on every rank; of each epoch every sample is seen once, in the same batches over all ranks."""
    before, after = resumed(begun, tmp_path / "run", kind, world, kind, other)
    for rank in after:
        assert rank["began"] == CUT
        of_its_own = [] if world == other else ["/model/norm.running_mean", "/model/norm.running_var"]
        expected = before[after.index(rank) if world == other else 0]["state"]
        assert set(differing(expected, rank["restored"])) <= set(of_its_own)
    assert once([*before, *after]) == Counter(product(range(EPOCHS), range(LENGTH)))
    _, alone = begun("plain", 1)
    known = steps([rank["seen"] for rank in before]) + steps([rank["seen"] for rank in after])
    assert known[:CUT] == steps([rank["seen"] for rank in alone])
    assert [len(batch) for _, batch in known] == [12] * (EPOCHS * LENGTH // 12)


@pytest.mark.parametrize(
    ("kind", "world", "other_kind", "other"),
    [
        ("ddp", 3, "fsdp", 2),
        ("fsdp", 2, "ddp", 3),
        ("fsdp", 3, "plain", 1),
        ("plain", 1, "fsdp", 4),
        ("ddp", 2, "plain", 1),
    ],
)
def test_wrappers_leave_no_trace(kind, world, other_kind, other, begun, tmp_path):
    """DDP, FSDP2 and one plain process restore each other's checkpoints, moments too."""
    before, after = resumed(begun, tmp_path / "run", kind, world, other_kind, other)
    for rank in after:
        assert set(differing(before[0]["state"], rank["restored"])) <= {
            "/model/norm.running_mean",
            "/model/norm.running_var",
        }
    assert once([*before, *after]) == Counter(product(range(EPOCHS), range(LENGTH)))


def test_the_world_may_change_as_often_as_it_likes(tmp_path):
    """Four ranks, two, three, one: with another batch over all ranks each time, and each sample once in each epoch."""
    seen = []
    for world, count in ((4, 1), (2, 1), (3, 3), (1, None)):
        seen += trained(world, "ddp", tmp_path / "run", steps=count, batch=3)
    assert once(seen) == Counter(product(range(EPOCHS), range(LENGTH)))


def test_a_divided_checkpoint_reads_as_a_whole_one(begun, tmp_path):
    """One process that knows nothing of ranks loads, verifies and exports what four wrote: every tensor whole."""
    path, ranks = begun("fsdp", 4)
    state = Store(path).load(placeholders=True)
    target = tmp_path / "model.safetensors"
    assert CliRunner().invoke(commands, ["verify", str(path)]).exit_code == 0
    assert CliRunner().invoke(commands, ["export", str(path), "-o", str(target)]).exit_code == 0
    exported = load_file(target)
    assert exported.keys() == ranks[0]["state"]["model"].keys()
    for name, value in ranks[0]["state"]["model"].items():
        assert state["model"][name].numpy().tobytes() == exported[name].numpy().tobytes() == value.tobytes()
