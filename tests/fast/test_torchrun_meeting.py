"""Ranks that meet where others have met before them."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import RanksError
from holdfast.torch.rendezvous import agree_on_prefix
from rank_threads import Shared


def met(shared, world, *, late=(), timeout_s=20.0):
    """The name that each rank has; `late`: those that come later than the others."""

    def one(rank):
        time.sleep(0.05 * (rank in late))
        return agree_on_prefix(shared, rank, world, timeout_s)

    with ThreadPoolExecutor(world) as pool:
        return [*pool.map(one, range(world))]


@pytest.mark.parametrize("late", [(), (0,), (1, 2)])
def test_ranks_of_one_start_meet_whatever_an_earlier_one_has_said(late):
    """All have the same name, which nobody had before; whoever comes first."""
    shared = Shared()
    names = [met(shared, world, late=late) for world in (3, 3, 4, 2, 3)]
    assert 5 == len({name for each in names for name in each})
    assert all(len({*each}) == 1 for each in names)


def test_a_rank_does_not_begin_with_the_call_of_an_earlier_start():
    """Nor with one that was answered and never repeated: the start was ended in the middle of it."""
    shared = Shared()
    shared.put("call", b"earlier")
    shared.put("answer/1", b"earlier/word")
    shared.put("go/1", b"earlier/word/rank 2 did not come")
    with pytest.raises(RanksError, match=r"rank 0 did not come to its Run within 0.1 s"):
        agree_on_prefix(shared, 1, 2, 0.1)
    assert "earlier" not in met(shared, 2, late=(0,))


def test_a_rank_that_does_not_come_is_named():
    """By rank 0, which does not take an old answer for a new one."""
    shared = Shared()
    met(shared, 3)
    with pytest.raises(RanksError, match=r"rank 1 did not come to its Run within 0.1 s"):
        agree_on_prefix(shared, 0, 3, 0.1)


def test_all_learn_who_is_missing():
    """Not only rank 0: each says the same."""
    shared, said = Shared(), []
    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(agree_on_prefix, shared, rank, 4, 0.5) for rank in (0, 1, 3)]:
            with pytest.raises(RanksError) as error:
                each.result()
            said.append(str(error.value))
    assert 1 == len({*said})
    assert said[0].startswith("rank 2 did not come to its Run")
