"""DDP and FSDP2 under a run, on real processes: what is resumed on as many ranks as before is what was never interrupted."""

from itertools import product

import numpy as np
import pytest

from rank_training import differing, trained

pytestmark = [pytest.mark.slow, pytest.mark.ranks]


FORMS = [("static", 3), ("views", 3), ("inside", 3)]  # settings of DDP's, and a script that tracks the model inside


@pytest.mark.parametrize(("kind", "world"), [*product(["ddp", "fsdp"], [2, 3, 4]), *FORMS])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(kind, world, tmp_path):
    """Cut in the middle of an epoch: weights, moments and each rank's own buffers end up as if nothing had been."""
    full = trained(world, kind, tmp_path / "full")
    begun = trained(world, kind, tmp_path / "cut", steps=3)
    rest = trained(world, kind, tmp_path / "cut", seed=2)
    assert [each["began"] for each in rest] == [3] * world
    assert [each["seen"] for each in full] == [a["seen"] + b["seen"] for a, b in zip(begun, rest, strict=True)]
    assert [differing(a["state"], b["state"]) for a, b in zip(full, rest, strict=True)] == [[]] * world


def test_without_the_reducers_warmth_three_ranks_sum_in_another_order(tmp_path):
    """The control: the same with a cold reducer is close, and not the same bits."""
    full = trained(3, "ddp", tmp_path / "full")
    trained(3, "ddp", tmp_path / "cut", steps=3)
    rest = trained(3, "ddp", tmp_path / "cut", warm=False)
    for a, b in zip(full, rest, strict=True):
        assert "/model/first.weight" in differing(a["state"], b["state"])
        assert np.allclose(a["state"]["model"]["first.weight"], b["state"]["model"]["first.weight"], atol=1e-5)
