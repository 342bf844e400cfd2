"""A training in JAX, in one of several styles: `jax_training.py STYLE`. Writes the digest of all that it ends with."""

import hashlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import struck
from holdfast import Best, Every, Last, Run
from holdfast.jax import Tree

STYLE = sys.argv[1]
DATA = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
TARGETS = (DATA @ np.arange(6, dtype="float32"))[:, None]
TX = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-2, 100)))


def mlp(params, x, key):
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    keep = jax.random.bernoulli(key, 0.8, hidden.shape)
    return jnp.where(keep, hidden / 0.8, 0).astype(hidden.dtype) @ params["v"]


def plain(dtype="float32"):
    """A dict of parameters, optax's state and a typed key."""
    key = jax.random.key(1)
    params = {
        "w": jax.random.normal(key, (6, 8), dtype),
        "b": jnp.zeros(8, dtype),
        "v": jax.random.normal(key, (8, 1), dtype),
    }
    return {"params": params, "opt": TX.init(params), "key": jax.random.key(2), "step": 0}


def step_of_plain(state, x, y):
    key, now = jax.random.split(state["key"])

    def loss_of(params):
        return jnp.mean((mlp(params, x.astype(params["w"].dtype), now) - y) ** 2).astype("float32")

    loss, grads = jax.value_and_grad(loss_of)(state["params"])
    updates, opt = TX.update(grads, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "opt": opt, "key": key, "step": state["step"] + 1}, loss


def optax_():
    tree, step = Tree(plain()), jax.jit(step_of_plain)
    return {"state": tree}, assigning(tree, step)


def bf16():
    tree, step = Tree(plain("bfloat16")), jax.jit(step_of_plain)
    return {"state": tree}, assigning(tree, step)


def donated():
    tree, step = Tree(plain()), jax.jit(step_of_plain, donate_argnums=0)
    return {"state": tree}, assigning(tree, step)


def sharded():
    """The batch over the devices of one axis; the first step lays out the parameters."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    over = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    state = plain()
    state["params"]["w"] = jax.device_put(
        state["params"]["w"], jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "data"))
    )
    state["opt"] = TX.init(state["params"])
    tree, step = Tree(state), jax.jit(step_of_plain, donate_argnums=0)
    return {"state": tree}, assigning(tree, lambda state, x, y: step(state, jax.device_put(x, over), y))


def linen():
    from flax import linen
    from flax.training.train_state import TrainState

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(x))
            return linen.Dense(1)(linen.Dropout(0.2, deterministic=not train)(linen.tanh(x)))

    class State(TrainState):
        batch_stats: dict
        key: jax.Array

    net = Net()
    made = net.init(jax.random.key(0), jnp.zeros((1, 6)), train=False)
    tree = Tree(
        State.create(
            apply_fn=net.apply, params=made["params"], tx=TX, batch_stats=made["batch_stats"], key=jax.random.key(5)
        )
    )

    @jax.jit
    def step(state, x, y):
        key = jax.random.fold_in(state.key, state.step)

        def loss_of(params):
            found, changed = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                x,
                train=True,
                rngs={"dropout": key},
                mutable=["batch_stats"],
            )
            return jnp.mean((found - y) ** 2), changed

        (loss, changed), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads).replace(batch_stats=changed["batch_stats"]), loss

    return {"state": tree}, assigning(tree, step)


def nnx():
    """Objects that change in place, with a shared layer, batch statistics, and a dropout's stream of keys."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(6, 8, rngs=rngs)
            self.again = nnx.Linear(8, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.drop = nnx.Dropout(0.2, rngs=rngs)
            self.last = nnx.Linear(8, 1, rngs=rngs)
            self.tied = self.again
            self.rngs = rngs  # it has any attribute: the stream of that name
            self.calls = 0

        def __call__(self, x):
            x = self.norm(self.tied(nnx.tanh(self.again(self.first(x)))))
            return self.last(self.drop(x)) + jax.random.normal(self.rngs.noise()) / 100

    net = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, TX, wrt=nnx.Param)

    @nnx.jit
    def step(net, optimizer, x, y):
        loss, grads = nnx.value_and_grad(lambda net: jnp.mean((net(x) - y) ** 2))(net)
        optimizer.update(net, grads)
        return loss

    def train(x, y):
        net.train()
        loss = step(net, optimizer, x, y)
        net.calls += 1
        assert net.tied is net.again
        return loss

    return {"net": Tree(net), "optimizer": Tree(optimizer)}, train


def equinox():
    import equinox as eqx

    def make(key):
        keys = jax.random.split(key, 3)
        return eqx.nn.Sequential(
            [
                eqx.nn.Linear(6, 8, key=keys[0]),
                eqx.nn.BatchNorm(8, axis_name="batch", mode="batch"),
                eqx.nn.Lambda(jax.nn.tanh),
                eqx.nn.Dropout(0.2),
                eqx.nn.MLP(8, 1, 4, 1, key=keys[1]),
            ]
        )

    model, state = eqx.nn.make_with_state(make)(jax.random.key(0))
    tree = Tree((model, state, TX.init(eqx.filter(model, eqx.is_inexact_array)), jax.random.key(3)))

    @eqx.filter_jit
    def step(held, x, y):
        model, state, opt, key = held
        key, now = jax.random.split(key)
        keys = jax.random.split(now, len(x))

        def loss_of(model):
            def one(x, state, key):
                return model(x, state, key=key)

            batched = jax.vmap(one, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
            found, changed = batched(x, state, keys)
            return jnp.mean((found - y) ** 2), changed

        (loss, changed), grads = eqx.filter_value_and_grad(loss_of, has_aux=True)(model)
        updates, opt = TX.update(grads, opt, eqx.filter(model, eqx.is_inexact_array))
        return (eqx.apply_updates(model, updates), changed, opt, key), loss

    return {"state": tree}, assigning(tree, step)


def assigning(tree, step):
    def train(x, y):
        tree.value, loss = step(tree.value, x, y)
        return loss

    return train


def digest(value):
    """Of every leaf, its dtype, and the structure."""
    if STYLE == "nnx":
        from flax import nnx

        value = [(nnx.split(each)[1], each.calls if hasattr(each, "calls") else 0) for each in value]
    found, _ = jax.tree_util.tree_flatten_with_path(value)
    told = hashlib.sha256()
    for path, leaf in found:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            told.update(f"{leaf.dtype} {np.asarray(jax.random.key_data(leaf)).tolist()}".encode())
        elif isinstance(leaf, jax.Array):
            told.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.weak_type} {leaf.sharding}".encode())
            told.update(np.asarray(leaf).tobytes())
        elif not callable(leaf):
            told.update(f"{jax.tree_util.keystr(path)} {leaf!r}".encode())
    return told.hexdigest(), len(found)


STYLES = {each.__name__.strip("_"): each for each in (optax_, bf16, donated, sharded, linen, nnx, equinox)}

np.random.seed(3)
state, train = STYLES[STYLE]()
with Run("run", state, keep=Last(2) | Best("mean", min), every=Every(steps=2), vars={"seen": []}, seed=1) as run:
    for _ in run.epochs(2):
        mean = []
        for batch in run.batches(np.random.permutation(len(DATA)).reshape(6, 4).tolist()):
            run.vars.seen.append(batch)
            noise = np.random.normal(scale=0.01, size=(4, 6)).astype("float32")
            run.log(loss=float(train(DATA[batch] + noise, TARGETS[batch])))
            struck.event("batch")
        run.log(mean=float(np.mean([line["values"]["loss"] for line in run.metrics()[-6:]])))
    result = {
        "state": digest([each.value for each in state.values()]),
        "seen": run.vars.seen,
        "log": [[line["step"], line["phase"], line["values"]] for line in run.metrics()],
    }
Path("result.json").write_text(json.dumps(result))
