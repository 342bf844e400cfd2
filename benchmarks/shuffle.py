"""The seekable order: what it costs to resume at sample 10^9 of 10^10, and how many indices a second come then.

One JSON line per figure: the median, and every run. torch.randperm stands beside it at 10^7, where its memory is at
hand everywhere; it computes an order whole before it gives the first index.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from itertools import islice

import torch  # and NumPy with it, as in any program that has a DataLoader

from holdfast.data import Sampler, Shuffle
from holdfast.data.order import AHEAD, CHUNK
from holdfast.torch.plans import OrderPlan, position_of

SAMPLES, RESUME, PEER = 10**10, 10**9, 10**7
RUNS = 9


def main() -> None:
    torch.set_num_threads(1)
    tell("first 1,000 indices at 10^9 of 10^10", "ms", lambda: 1e3 * seconds(resume))
    tell("the same, memory", "MiB", lambda: mebibytes(resume))
    for name, length in (("10^10", SAMPLES), ("2^34", 2**34), ("2^33 + 1", 2**33 + 1), ("10^6", 10**6)):
        tell(f"Shuffle.block of {name}", "indices/s", blocks(length))
    tell("Shuffle.walk", "indices/s", rate(walk, 16 * AHEAD))
    tell("Sampler.indices", "indices/s", rate(indices, 16 * AHEAD))
    tell("run.batches' plan, batches of 32", "indices/s", rate(plan, 16 * AHEAD))
    without_numpy()
    tell("torch.randperm(10^7), first index", "ms", lambda: 1e3 * seconds(randperm))
    tell("torch.randperm(10^7)", "indices/s", rate(randperm, PEER))


def tell(figure: str, unit: str, measure: Callable[[], float]) -> None:
    measure()  # touches what is cold
    runs = [measure() for _ in range(RUNS)]
    line = {"table": "shuffle", "figure": figure, "value": statistics.median(runs), "unit": unit, "runs": runs}
    print(json.dumps(line), flush=True)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def rate(work: Callable[[], object], count: int) -> Callable[[], float]:
    return lambda: count / seconds(work)


def mebibytes(work: Callable[[], object]) -> float:
    tracemalloc.start()
    kept = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del kept
    return peak / 2**20


def drain(items: object) -> None:
    deque(items, maxlen=0)  # type: ignore[call-overload]


def resume() -> list[int]:
    return list(islice(Sampler(SAMPLES, seed=1).indices(0, RESUME), 1000))


def blocks(length: int) -> Callable[[], float]:
    shuffle, start, count = Shuffle(length, 1), RESUME if length > RESUME else 0, min(32 * CHUNK, length)
    return rate(lambda: shuffle.block(start, start + count), count)


def walk() -> None:
    drain(islice(Shuffle(SAMPLES, 1).walk(RESUME), 16 * AHEAD))


def indices() -> None:
    drain(islice(Sampler(SAMPLES, seed=1).indices(0, RESUME), 16 * AHEAD))


def plan() -> None:
    batches = OrderPlan(Sampler(SAMPLES, seed=1), 32, drop_last=False, name="holdfast")
    drain(islice(batches.walk(0, position_of(0, RESUME // 32, RESUME)), 16 * AHEAD // 32))


def randperm() -> torch.Tensor:
    return torch.randperm(PEER)


def without_numpy() -> None:
    """The same in a program that has not imported NumPy."""
    loaded = sys.modules["numpy"]
    sys.modules["numpy"] = None  # type: ignore[assignment]
    try:
        tell("first 1,000 indices, without NumPy", "ms", lambda: 1e3 * seconds(resume))
        tell("Shuffle.walk, without NumPy", "indices/s", rate(walk, 16 * AHEAD))
    finally:
        sys.modules["numpy"] = loaded


if __name__ == "__main__":
    main()
