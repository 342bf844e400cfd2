"""Runs that start from checkpoints of Orbax, as its three ways of saving a tree lay them out."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax.training.train_state import TrainState

from holdfast import Run
from holdfast.errors import Mismatch
from holdfast.jax import Tree
from holdfast.run.weights import StartFrom

here = Path.cwd()


def made(seed, width=4):
    key = jax.random.key(seed)
    params = {"dense": {"kernel": jax.random.normal(key, (3, width)), "bias": jnp.full(width, seed, "bfloat16")}}
    tx = optax.chain(optax.clip(1.0), optax.adam(1e-3))
    state = TrainState.create(apply_fn=jnp.tanh, params=params, tx=tx)
    return state.apply_gradients(grads=params)


def bits(state):
    return [(type(leaf), np.asarray(leaf).dtype, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(state)]


def same(path, name):
    tree = Tree(made(2))
    with Run(here / f"run-{name}", {"state": tree}, start_from=path):
        assert bits(tree.value) == bits(made(1)), path
        assert isinstance(tree.value, TrainState)
    return 1


saved = made(1)
with ocp.StandardCheckpointer() as one:
    one.save(here / "standard", saved)
with ocp.PyTreeCheckpointer() as one:
    one.save(here / "pytree", saved)
with ocp.CheckpointManager(here / "managed") as manager:
    manager.save(3, args=ocp.args.StandardSave(saved))
with ocp.CheckpointManager(here / "items") as manager:
    manager.save(3, args=ocp.args.Composite(state=ocp.args.StandardSave(saved), more=ocp.args.JsonSave({"a": 1})))

seen = sum(same(here / path, path.replace("/", "-")) for path in ("standard", "pytree", "managed/3", "items/3"))
tree = Tree(made(2, width=5))
with pytest.raises(Mismatch, match=r"\d mismatched: .*params.dense.bias"):
    Run(here / "refused", {"state": tree}, start_from=here / "standard").__enter__()
assert bits(tree.value) == bits(made(2, width=5))
seen += 1
with Run(here / "some", {"state": tree}, start_from=StartFrom(here / "standard", strict=False)):
    assert tree.value.step == 1
print("seen:", seen)
