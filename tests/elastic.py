"""DDP and FSDP2 under a run, on real processes: saved by some number of them, gone on with by as many or by others.

What is begun on a number of processes is begun in one launch of them, and so is what is gone on with on that many.
The laws
are here; tests/prove/test_elastic_whole.py asks them of every case, tests/slow/test_elastic.py of some (`EVERY`).
"""

import shutil
from collections import Counter
from itertools import chain, product
from typing import NamedTuple

import numpy as np
import pytest

from rank_training import EPOCHS, LENGTH, differing, trained

WORLDS = [1, 2, 3, 4]
CUT = 3  # steps of the first epoch's four
OF_EACH_RANK = {"/model/norm.running_mean", "/model/norm.running_var"}

# Settings of DDP's, and scripts that track the model inside, one of which wraps it when the run has begun. Replicas of
# pieces, pieces of a tensor parallel model, sums of more digits.
FORMS = [*product(["static", "views", "inside", "late"], [3]), *product(["replicas", "tensors", "mixed"], [4])]
SAME = [*product(["ddp", "fsdp"], [2, 3, 4]), *FORMS]  # bit for bit


class Change(NamedTuple):
    """A run of some ranks, and what goes on with it."""

    kind: str
    world: int
    other_kind: str
    other: int
    how: tuple = ()  # options of `train`
    of: str = "cut"  # or "full"


TABLE = [
    Change("ddp", 3, "fsdp", 2),
    Change("fsdp", 2, "ddp", 3),
    Change("fsdp", 3, "plain", 1),
    Change("plain", 1, "fsdp", 4),
    Change("ddp", 2, "plain", 1),
    *(Change(kind, world, kind, other) for kind, world, other in product(["ddp", "fsdp"], WORLDS, WORLDS)),
]
READ = [Change(kind, 4, "plain", 1, (("steps", 0),)) for kind in ("replicas", "tensors", "mixed")]
DONE = [Change(kind, 2, kind, 4, of="full") for kind in ("ddp", "fsdp")]
COLD = Change("ddp", 3, "ddp", 3, (("warm", False),))
ALIKE = [Change(kind, world, kind, world) for kind, world in SAME]
OF = {  # law -> its cases
    "test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one": ALIKE,
    "test_saved_on_some_ranks_restored_on_others": TABLE,
    "test_each_form_of_pieces_is_read_by_one_process": READ,
    "test_a_finished_run_has_nothing_to_do": DONE,
}


def asked(module, law):
    """Those that the module asks of a law: each `EVERY[law]`th."""
    return OF[law][:: module.EVERY.get(law, 1)]


def pytest_generate_tests(metafunc):
    if "change" in metafunc.fixturenames:
        found = asked(metafunc.module, metafunc.function.__name__)
        metafunc.parametrize("change", found, ids=["-".join(map(str, each[:4])) for each in found])


def changes(module):
    """All that the module's laws ask for, in one order."""
    read = [
        Change(each.kind, 4, each.kind, 4) for each in asked(module, "test_each_form_of_pieces_is_read_by_one_process")
    ]
    return [*dict.fromkeys([*(each for law in OF for each in asked(module, law)), *read, COLD])]


class Begun(NamedTuple):
    """A run, and what its ranks saw and had."""

    path: object
    ranks: list


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """Of each kind and number of ranks that is asked for, a whole run and one that was cut."""
    place, found = tmp_path_factory.mktemp("begun"), {}
    wanted = {(each.kind, each.world, each.of) for each in changes(request.module)}
    wanted |= {(kind, world, "full") for kind, world, *_ in [COLD, *asked(request.module, next(iter(OF)))]}
    wanted.add(("plain", 1, "cut"))
    for world in WORLDS:
        names = sorted((kind, how) for kind, of, how in wanted if of == world)
        paths = [place / f"{kind}-{world}-{how}" for kind, how in names]
        steps = [CUT if how == "cut" else None for _, how in names]
        cases = [
            {"kind": name[0], "path": path, "steps": count}
            for name, path, count in zip(names, paths, steps, strict=True)
        ]
        came = map(Begun, paths, trained(world, *cases))
        found |= {(kind, world, how): each for (kind, how), each in zip(names, came, strict=True)}
    return found


@pytest.fixture(scope="module")
def resumed(request, runs, tmp_path_factory):
    """What came of a change: what its ranks saw and had before, and after."""
    place, known = tmp_path_factory.mktemp("resumed"), {}

    def find(*change):
        change = Change(*change)
        if change not in known:
            alike = [each for each in changes(request.module) if each.other == change.other]
            cases = []
            for number, each in enumerate(alike):
                path = place / f"{each.other}-{number}"
                shutil.copytree(runs[each.kind, each.world, each.of].path, path, symlinks=True)
                cases.append({"kind": each.other_kind, "path": path, "seed": 2, **dict(each.how)})
            known.update(zip(alike, trained(change.other, *cases), strict=True))
        return runs[change.kind, change.world, change.of].ranks, known[change]

    return find


def steps(seen):
    """What all ranks together took in each step."""
    return [(each[0][0], sorted(chain.from_iterable(batch for _, batch in each))) for each in zip(*seen, strict=True)]


def once(ranks):
    """How often each sample was seen in each epoch, by however many processes one after another."""
    return Counter((epoch, number) for rank in ranks for epoch, batch in rank["seen"] for number in batch)


def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(change, runs, resumed):
    """Cut in the middle of an epoch: weights, moments and each rank's own buffers end up as if nothing had been."""
    world = change.world
    full = runs[change.kind, world, "full"].ranks
    before, rest = resumed(*change)
    assert [each["began"] for each in rest] == [CUT] * world
    assert [each["seen"] for each in full] == [a["seen"] + b["seen"] for a, b in zip(before, rest, strict=True)]
    assert [differing(a["state"], b["state"]) for a, b in zip(full, rest, strict=True)] == [[]] * world


def test_without_the_reducers_warmth_three_ranks_sum_in_another_order(runs, resumed):
    """The control: the same with a cold reducer is close, and not the same bits."""
    full, (_, rest) = runs["ddp", 3, "full"].ranks, resumed(*COLD)
    for a, b in zip(full, rest, strict=True):
        assert "/model/first.weight" in differing(a["state"], b["state"])
        assert np.allclose(a["state"]["model"]["first.weight"], b["state"]["model"]["first.weight"], atol=1e-5)


def test_saved_on_some_ranks_restored_on_others(change, runs, resumed):
    """Tensors are identical on every rank; of each epoch every sample is seen once, in the same batches over all ranks.

    DDP, FSDP2 and one plain process restore each other's checkpoints, moments too.
    """
    before, after = resumed(*change)
    for rank, had in enumerate(after):
        expected, of_its_own = (before[rank], set()) if change.world == change.other else (before[0], OF_EACH_RANK)
        assert had["began"] == CUT
        assert set(differing(expected["state"], had["restored"])) <= of_its_own
    assert once([*before, *after]) == Counter(product(range(EPOCHS), range(LENGTH)))
    alone = runs["plain", 1, "cut"].ranks
    known = steps([rank["seen"] for rank in before]) + steps([rank["seen"] for rank in after])
    assert known[:CUT] == steps([rank["seen"] for rank in alone])
    assert [len(batch) for _, batch in known] == [12] * (EPOCHS * LENGTH // 12)


def test_each_form_of_pieces_is_read_by_one_process(change, resumed):
    """Whole, as ranks of the same form read it."""
    _, rest = resumed(change.kind, 4, change.kind, 4)
    _, alone = resumed(*change)
    assert differing(rest[0]["restored"], alone[0]["restored"]) == []


def test_a_finished_run_has_nothing_to_do(change, resumed):
    """Whatever the number of processes: they have its last state."""
    before, after = resumed(*change)
    for rank in after:
        assert [] == rank["seen"]
        assert set(differing(before[0]["state"], rank["state"])) <= OF_EACH_RANK


def test_the_world_may_change_as_often_as_it_likes(tmp_path):
    """Four ranks, two, three, one: with another batch over all ranks each time, and each sample once in each epoch."""
    seen = []
    for world, count in ((4, 1), (2, 1), (3, 3), (1, None)):
        (ranks,) = trained(world, {"kind": "ddp", "path": tmp_path / "run", "steps": count, "batch": 3})
        seen += ranks
    assert once(seen) == Counter(product(range(EPOCHS), range(LENGTH)))


def test_what_four_have_saved_eight_go_on_with(tmp_path):
    """More ranks than some tensors have rows: all are identical, and every sample is seen once in each epoch."""
    cases = [{"kind": kind, "path": tmp_path / kind, "batch": 3} for kind in ("ddp", "fsdp")]
    begun = trained(4, *({**case, "steps": 2} for case in cases))
    for before, after in zip(begun, trained(8, *({**case, "seed": 2} for case in cases)), strict=True):
        assert [2] * 8 == [rank["began"] for rank in after]
        assert all(set(differing(before[0]["state"], rank["restored"])) <= OF_EACH_RANK for rank in after)
        assert once([*before, *after]) == Counter(product(range(EPOCHS), range(LENGTH)))
