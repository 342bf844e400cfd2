"""beside_jax.py none|own|holdfast: noise; Orbax, or ours."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import struck

mode = sys.argv[1]
draw = np.random.default_rng(7)
x, y = draw.normal(size=(84, 6)).astype("float32"), draw.normal(size=(84, 1)).astype("float32")
optimizer = optax.adam(0.01)


@jax.jit
def step(state, batch, target):
    key, now = jax.random.split(state["key"])
    noisy = batch + 0.1 * jax.random.normal(now, batch.shape)
    gradient = jax.grad(lambda weights: jnp.mean((noisy @ weights - target) ** 2))(state["weights"])
    updates, moments = optimizer.update(gradient, state["optimizer"])
    return {"weights": optax.apply_updates(state["weights"], updates), "optimizer": moments, "key": key}


def trained(number):
    with Path("batches").open("a") as done:
        print(number, file=done)
    struck.event("batch")


weights = jnp.zeros((6, 1))
state = {"weights": weights, "optimizer": optimizer.init(weights), "key": jax.random.key_data(jax.random.key(7))}
batches = [slice(start, start + 12) for start in range(0, 84, 12)]
if mode == "holdfast":
    from holdfast import Every, Run
    from holdfast.jax import Tree

    tree = Tree(state)
    with Run("run", {"tree": tree}, every=Every(steps=3), background=False) as run:
        for _ in run.epochs(3):
            for batch in run.batches(batches):
                tree.value = step(tree.value, x[batch], y[batch])
                trained(run.step)
    state = tree.value
else:
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(save_interval_steps=3, max_to_keep=2)
    with ocp.CheckpointManager(Path("orbax").absolute(), options=options) as manager:
        begin = 0
        if mode == "own" and manager.latest_step() is not None:
            state = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
            begin = manager.latest_step() + 1
        for number in range(begin, 3 * len(batches)):
            batch = batches[number % len(batches)]
            state = step(state, x[batch], y[batch])
            if mode == "own":
                manager.save(number, args=ocp.args.StandardSave(state))
            trained(number)
leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
Path("result.json").write_text(json.dumps({"weights": struck.digest(leaves), "log": []}))
