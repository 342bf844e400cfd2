"""States of which most never changes, their saves, and which of a checkpoint's files others have, too."""

import threading

import numpy as np

from holdfast.run import writer


def lora(layers=40, frozen=25_000):
    """Frozen layers with a trained adapter after each: 99% of the bytes never change."""
    rng = np.random.default_rng(1)
    sizes = {"weight": frozen, "adapter": frozen // 100}
    return {f"{layer}.{name}": rng.standard_normal(size) for layer in range(layers) for name, size in sizes.items()}


def train(state):
    for name in state:
        if "adapter" in name:
            state[name] += 1


def same(found, wanted):
    return list(found) == list(wanted) and all(found[key].tobytes() == wanted[key].tobytes() for key in wanted)


def shared(path):
    """Names of the files that have other names elsewhere."""
    return sorted(file.name for file in path.iterdir() if file.stat().st_nlink > 1)


def own_bytes(path):
    return sum(file.stat().st_size for file in path.iterdir() if file.stat().st_nlink == 1)


def saved(store, count, state=None):
    """Saves so many steps of a training with a frozen backbone; copies of the states by step."""
    state = state or lora(4, 2_000)
    states = {}
    for step in range(1, count + 1):
        train(state)
        store.save({"model": state}, step=step)
        states[step] = {key: array.copy() for key, array in state.items()}
    return states


def rest():
    """Return when nobody reads beside a loop."""
    for thread in threading.enumerate():
        if thread.name == writer.NAME:
            thread.join(10)
            assert not thread.is_alive()


class Frozen:
    """A tracked object with a big array that stays and a small one that changes."""

    def __init__(self):
        self.big, self.small = np.arange(10_000.0), np.zeros(3)

    def state_dict(self):
        return {"big": self.big, "small": self.small}

    def load_state_dict(self, state):
        self.big, self.small = state["big"], state["small"]
