"""Planted: renamed, but never flushed. A loss of power must show it."""

import hashlib
import io
import os

import numpy as np

NAME = "planted: no fsync"
VERSION = np.__version__
PRACTICE = "a digest, written beside, os.replace without fsync"
LINK = "benchmarks/trust/planted"
PROMISES = {}
PLANTED = ("power loss", {"silently wrong", "lost", "refused", "crashed", "older"})


def write(folder, step, state, *, flushed, renamed, checked):
    memory = io.BytesIO()
    np.savez(memory, step=step, **state)
    data = memory.getvalue()
    head = hashlib.sha256(data).digest() if checked else bytes(32)
    target = folder / ("being-written" if renamed else "checkpoint")
    with target.open("wb", buffering=0) as file:
        for at in range(0, len(data), 1 << 14):
            file.write((head if at == 0 else b"") + data[at : at + (1 << 14)])
        if flushed:
            os.fsync(file.fileno())
    if renamed:
        os.replace(target, folder / "checkpoint")
    if flushed:
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def train(folder, first, last, state_of, saved):
    for step in range(first, last + 1):
        write(folder, step, state_of(step), flushed=False, renamed=True, checked=True)
        saved(step)


def read(folder, like, *, checked):
    if not (folder / "checkpoint").exists():
        return None
    data = (folder / "checkpoint").read_bytes()
    if checked and hashlib.sha256(data[32:]).digest() != data[:32]:
        raise ValueError(f"{folder / 'checkpoint'} is damaged")
    kept = np.load(io.BytesIO(data[32:]))
    return int(kept["step"]), {name: kept[name] for name in like}


def resume(folder, like):
    return read(folder, like, checked=True)
