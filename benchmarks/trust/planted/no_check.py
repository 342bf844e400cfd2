"""Planted: flushed and renamed, but nothing is checked. A flipped bit must show it."""

import os

import numpy as np

NAME = "planted: no check"
VERSION = np.__version__
PRACTICE = "raw bytes, written beside, fsync, os.replace"
LINK = "benchmarks/trust/planted"
PROMISES = {}
PLANTED = ("flipped bit", {"silently wrong"})


def train(folder, first, last, state_of, saved):
    for step in range(first, last + 1):
        data = b"".join([step.to_bytes(8, "little"), *(value.tobytes() for value in state_of(step).values())])
        with (folder / "being-written").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(folder / "being-written", folder / "checkpoint")
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        saved(step)


def resume(folder, like):
    if not (folder / "checkpoint").exists():
        return None
    data, state, at = (folder / "checkpoint").read_bytes(), {}, 8
    for name, value in like.items():
        state[name] = np.frombuffer(data[at : at + value.nbytes], value.dtype).reshape(value.shape)
        at += value.nbytes
    return int.from_bytes(data[:8], "little"), state
