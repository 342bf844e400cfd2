"""States of several ranks that save together, and what is asked of their checkpoints."""

from contextlib import contextmanager

import numpy as np
import pytest
from msgspec.structs import replace

from holdfast.collective import division
from holdfast.collective.store import CollectiveStore
from holdfast.store import lineage, shards
from kept import bits
from rank_threads import everywhere


class Divided:
    """A rank's piece of an array, or a copy of another rank's: what a sharded tensor is to the store."""

    def __init__(self, whole, at, shape, *, spare=None):
        self.whole, self.at, self.shape, self.spare = whole, tuple(at), tuple(shape), spare

    @property
    def array(self):
        index = tuple(slice(start, start + extent) for start, extent in zip(self.at, self.shape, strict=True))
        return np.ascontiguousarray(self.whole[index]).reshape(self.shape)

    def attrs(self):
        found = {"of": list(self.whole.shape), "at": list(self.at)}
        return found if self.spare is None else {**found, "spare": self.spare}


def stage(store, state, arena=None):
    """What `commit` takes, with pieces marked as such."""
    divided = {}

    def plain(node, path):
        if isinstance(node, Divided):
            divided[path] = node
            return node.array
        if isinstance(node, dict):
            return {key: plain(value, f"{path}/{key}" if path else key) for key, value in node.items()}
        return node

    staged = store.stage(plain(state, ""), arena)
    for key, piece in divided.items():
        block = staged.leaves[key]
        staged.leaves[key] = replace(block, attrs={**block.attrs, **piece.attrs()})
    return staged


def among(world, root, work, timeout_s=None, **options):
    """What `work(store)` came to on each of so many ranks, each with a store of its own."""
    return everywhere(world, lambda ranks: work(CollectiveStore(root, ranks=ranks, **options)), timeout_s)


def kinds(outcomes):
    return [type(each) for each in outcomes]


def put(store, state, step, **hooks):
    return store.commit(stage(store, state), step=step, **hooks)


def saved(root, states, step=1, **options):
    """The outcome of a save on each rank."""

    def work(store):
        try:
            return put(store, states[store.ranks.rank], step)
        finally:
            store.close()

    return among(len(states), root, work, **options)


def whole(state):
    """What readers find of a rank's state: divided arrays are whole."""
    if isinstance(state, Divided):
        return state.whole
    return {key: whole(value) for key, value in state.items()} if isinstance(state, dict) else state


def same(expected, actual):
    """Bit for bit, containers, their order and types included."""
    return bits(expected) == bits(actual)


@contextmanager
def small(link_bytes=4096):
    """A few bytes are divided among all ranks, and a file of so many is worth a link."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(division, "SHARE_BYTES", 1)
        for module in (lineage, shards):
            patch.setattr(module, "LINK_BYTES", link_bytes)
        yield


def state(rank, size=1000, step=0):
    """Alike everywhere but for what a real run has in a way of its own."""
    seeded = np.random.default_rng(step)
    model = {f"layer{n}": seeded.standard_normal(size).astype(np.float32) for n in range(8)}
    model["mean"] = np.full(5, rank, np.float32)
    return {"model": model, "vars": {"epoch": 3, "rank": rank}, "rng": np.arange(rank, rank + 600), "note": "same"}


def read(checkpoint, rank):
    """As that rank, every byte of what it gave checked."""
    view = checkpoint.as_rank(rank)
    view.check_layout()
    return view.load()


def failed(outcomes):
    return [each for each in outcomes if isinstance(each, Exception)]


def frozen(rank, size, step):
    """As `state`, small, beside what never changes: alike everywhere, and each rank's own."""
    seeded = np.random.default_rng(7)
    stays = {f"layer{n}": seeded.standard_normal(size) for n in range(6)}
    return {"stays": stays, "own": np.full(size, rank), **state(rank, 5, step)}
