"""FSDP2 in its other forms under a run: replicas of pieces, pieces of a tensor parallel model, sums of more digits."""

import pytest

from rank_training import differing, trained

pytestmark = [pytest.mark.slow, pytest.mark.ranks]


@pytest.mark.parametrize("kind", ["replicas", "tensors", "mixed"])
def test_each_form_is_resumed_bit_for_bit_and_read_by_one_process(kind, tmp_path):
    """On four ranks as if nothing had been; and by one process, whole."""
    full = trained(4, kind, tmp_path / "full")
    trained(4, kind, tmp_path / "cut", steps=3)
    alone = trained(1, "plain", tmp_path / "cut", steps=0)
    rest = trained(4, kind, tmp_path / "cut", seed=2)
    assert [each["began"] for each in rest] == [3] * 4
    assert [differing(a["state"], b["state"]) for a, b in zip(full, rest, strict=True)] == [[]] * 4
    assert differing(rest[0]["restored"], alone[0]["restored"]) == []
