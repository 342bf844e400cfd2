"""What several ranks save together: one checkpoint, and each finds in it what it gave."""

import numpy as np
import pytest

from holdfast.store.store import Store
from rank_threads import everywhere

WORLDS = [2, 3, 4]


def saved(root, states, step=1, **options):
    """What each rank saved, or what it raised."""

    def work(ranks):
        store = Store(root, ranks=ranks, **options)
        return store.save(states[ranks.rank], step=step)

    return everywhere(len(states), work)


def state(rank, size=1000):
    """Alike everywhere but for what a real run has in a way of its own."""
    seeded = np.random.default_rng(7)
    model = {f"layer{n}": seeded.standard_normal(size).astype(np.float32) for n in range(8)}
    model["mean"] = np.full(5, rank, np.float32)
    return {"model": model, "vars": {"epoch": 3, "rank": rank}, "rng": np.arange(rank, rank + 600), "note": "same"}


def same(expected, actual):
    """Bit for bit, containers and types included."""
    if isinstance(expected, dict):
        return (
            type(actual) is dict
            and list(expected) == list(actual)
            and all(same(expected[key], actual[key]) for key in expected)
        )
    if isinstance(expected, np.ndarray):
        return (
            type(actual) is np.ndarray
            and (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
            and expected.tobytes() == actual.tobytes()
        )
    return type(expected) is type(actual) and expected == actual


@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_finds_what_it_gave(tmp_path, world):
    """`as_rank(r)` is what rank r saved, bit for bit; whoever asks plainly, or is a further rank, sees rank 0's."""
    states = [state(rank) for rank in range(world)]
    assert not [each for each in saved(tmp_path, states) if isinstance(each, Exception)]
    checkpoint = Store(tmp_path).latest()
    assert checkpoint.world == world
    for rank in range(world):
        assert same(states[rank], checkpoint.as_rank(rank).load())
        checkpoint.as_rank(rank).check_layout()
    assert same(states[0], checkpoint.load())
    assert same(states[0], checkpoint.as_rank(world + 3).load())
    assert not list(checkpoint.problems(cold=True))
