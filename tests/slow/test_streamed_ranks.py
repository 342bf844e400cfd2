"""DDP and FSDP2 over a Stream, on real processes: cut, and gone on with on as many ranks or on others."""

import shutil

import pytest

from rank_training import EPOCHS, LENGTH, differing, trained
from sources import merged

KINDS = ("ddp", "fsdp")
CUT = 3  # steps of the first epoch's four


def steps(ranks):
    """The samples of each step over all ranks, in their order."""
    seen = zip(*(rank["seen"] for rank in ranks), strict=True)
    return [(step[0][0], merged([numbers for _, numbers in step])) for step in seen]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Of each kind: a whole run of two ranks, and one that was cut."""
    place = tmp_path_factory.mktemp("begun")
    cases = [(f"{kind}-{count}", kind, count) for kind in KINDS for count in (None, CUT)]
    asked = [{"kind": kind, "path": place / name, "steps": count, "streamed": True} for name, kind, count in cases]
    return place, dict(zip([name for name, *_ in cases], trained(2, *asked), strict=True))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_samples_go_on_in_their_order_on_any_number_of_ranks(world, begun, tmp_path):
    """Step for step those of the whole run, each once in an epoch; on as many ranks all ends with the same bits."""
    place, ranks = begun
    for kind in KINDS:
        shutil.copytree(place / f"{kind}-{CUT}", tmp_path / kind, symlinks=True)
    found = trained(world, *({"kind": kind, "path": tmp_path / kind, "seed": 2, "streamed": True} for kind in KINDS))
    for kind, rest in zip(KINDS, found, strict=True):
        whole, cut = ranks[f"{kind}-None"], ranks[f"{kind}-{CUT}"]
        assert [CUT] * world == [rank["began"] for rank in rest]
        assert steps(whole) == steps(cut) + steps(rest)
        for epoch in range(EPOCHS):
            assert [*range(LENGTH)] == sorted(n for at, numbers in steps(whole) if at == epoch for n in numbers)
        if world == 2:
            assert [[]] * 2 == [differing(a["state"], b["state"]) for a, b in zip(whole, rest, strict=True)]
