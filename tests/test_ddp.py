"""DDP and FSDP2 under a run, on real processes: what is resumed on as many ranks as before is what was never interrupted."""

from functools import partial

import numpy as np
import pytest

from rank_processes import everywhere
from rank_training import train

pytestmark = [pytest.mark.slow, pytest.mark.ranks]


def trained(world, kind, path, **options):
    outcomes = everywhere(world, partial(train, kind=kind, path=path, **options), method="forkserver", timeout_s=60)
    assert [outcome.error for outcome in outcomes] == [""] * world
    return [outcome.value for outcome in outcomes]


def flat(tree, name=""):
    if isinstance(tree, dict | list):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return [pair for key, value in pairs for pair in flat(value, f"{name}/{key}")]
    return [(name, tree.tobytes() if isinstance(tree, np.ndarray) else tree)]


def differing(one, other):
    """Names of what is not the same bits on some rank."""
    parts = [
        (flat([a["model"], a["optimizer"]]), flat([b["model"], b["optimizer"]]))
        for a, b in zip(one, other, strict=True)
    ]
    return sorted({x[0] for mine, theirs in parts for x, y in zip(mine, theirs, strict=True) if x != y})


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(kind, world, tmp_path):
    """Cut in the middle of an epoch: weights, moments and each rank's own buffers end up as if nothing had been."""
    full = trained(world, kind, tmp_path / "full")
    begun = trained(world, kind, tmp_path / "cut", steps=3)
    rest = trained(world, kind, tmp_path / "cut", seed=2)
    assert [each["began"] for each in rest] == [3] * world
    assert [each["seen"] for each in full] == [a["seen"] + b["seen"] for a, b in zip(begun, rest, strict=True)]
    assert differing(full, rest) == []


def test_without_the_reducers_warmth_three_ranks_sum_in_another_order(tmp_path):
    """The control: the same with a cold reducer is close, and not the same bits."""
    full = trained(3, "ddp", tmp_path / "full")
    trained(3, "ddp", tmp_path / "cut", steps=3)
    rest = trained(3, "ddp", tmp_path / "cut", warm=False)
    assert differing(full, rest) != []
    for a, b in zip(full, rest, strict=True):
        assert np.allclose(a["model"]["first.weight"], b["model"]["first.weight"], atol=1e-5)
