"""Train a small network on scikit-learn's handwritten digits in JAX; kill it whenever you like, and run it again.

    python examples/jax/train.py
    holdfast drill -- python examples/jax/train.py      # proves that it resumes bit for bit

Everything here is plain JAX and optax, but for the lines marked with (*).
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from holdfast import Best, Every, Last, Run
from holdfast.data import Shuffle
from holdfast.jax import Tree

EPOCHS, BATCH, TRAIN = 8, 48, 1437
TX = optax.adam(optax.cosine_decay_schedule(2e-3, EPOCHS * (TRAIN // BATCH)))


def network(params, images, key=None):
    hidden = jax.nn.relu(images @ params["w1"] + params["b1"])
    if key is not None:  # dropout
        hidden = jnp.where(jax.random.bernoulli(key, 0.8, hidden.shape), hidden / 0.8, 0)
    return hidden @ params["w2"] + params["b2"]


def loss_of(params, images, labels, key):
    logits = network(params, images, key)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train_step(state, images, labels):
    key, now = jax.random.split(state["key"])
    loss, grads = jax.value_and_grad(loss_of)(state["params"], images, labels, now)
    updates, opt = TX.update(grads, state["opt"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "key": key}, loss


@jax.jit
def accuracy(params, images, labels):
    return (network(params, images).argmax(1) == labels).mean()


def first_state():
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "w1": jax.random.normal(keys[0], (64, 128)) / 8,
        "b1": jnp.zeros(128),
        "w2": jax.random.normal(keys[1], (128, 10)) / 11,
        "b2": jnp.zeros(10),
    }
    return {"params": params, "opt": TX.init(params), "key": keys[2]}


def main():
    digits = load_digits()
    images, labels = np.float32(digits.data) / 16, digits.target
    step = jax.jit(train_step, donate_argnums=0)
    tree = Tree(first_state())  # (*)
    keep = Last(2) | Best("val_acc", max)
    with Run("runs/jax", {"state": tree}, keep=keep, every=Every(steps=20)) as run:  # (*)
        for epoch in run.epochs(EPOCHS):  # (*)
            order = np.array(Shuffle(TRAIN, seed=0, epoch=epoch)[: TRAIN // BATCH * BATCH])
            for batch in run.batches(order.reshape(-1, BATCH).tolist()):  # (*)
                tree.value, loss = step(tree.value, images[batch], labels[batch])  # (*)
                run.log(loss=float(loss))  # (*)
            run.log(val_acc=float(accuracy(tree.value["params"], images[TRAIN:], labels[TRAIN:])))  # (*)
    print("accuracy", float(accuracy(tree.value["params"], images[TRAIN:], labels[TRAIN:])))


main()
