"""Small things at scale: 100,000 leaves, 10,000 checkpoints, 100,000 batches.

One JSON line per figure: the median, and every run. What is said over the bare list was measured in turns with it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import many
from harness import scratch
from holdfast import Run, Store
from holdfast.state.tree import flatten
from holdfast.store import format

TENSORS, CHECKPOINTS, LEAVES, BATCHES = 100_000, 10_000, 300, 100_000
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


def main() -> None:
    torch.set_num_threads(1)
    with scratch(sys.argv[1] if len(sys.argv) > 1 else os.curdir) as place:
        looping(place)
        flattening()
        listing(place)


def tell(figure: str, unit: str, measure: Callable[[], float], rounds: int = 9) -> None:
    measure()  # touches what is cold
    runs = [measure() for _ in range(rounds)]
    line = {"table": "scale", "figure": figure, "value": statistics.median(runs), "unit": unit, "runs": runs}
    print(json.dumps(line), flush=True)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Nothing:
    """A state of no size: what remains is the loop's own cost."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def looping(place: Path) -> None:
    batches = list(range(BATCHES))

    def each_us(loop: Callable[[Run, Iterable[int]], None]) -> float:
        runs = len(list(place.iterdir()))
        with Run(place / f"run-{runs}", {"nothing": Nothing()}, every=None) as run:
            ours = seconds(lambda: loop(run, run.batches(batches)))
            bare = seconds(lambda: loop(run, batches))
        return 1e6 * (ours - bare) / BATCHES

    def nothing(_: Run, items: Iterable[int]) -> None:
        for _item in items:
            pass

    def logging(run: Run, items: Iterable[int]) -> None:
        log = run.log if items is not batches else dict
        for _item in items:
            log(loss=0.5)

    tell("batch_us", "us", lambda: each_us(nothing))
    tell("batch_logged_us", "us", lambda: each_us(logging))


def tensors(count: int) -> dict[str, Any]:
    """A model of a quarter of `count` tensors of 1 KiB, and three moments for each."""
    names = [f"layers.{index // 12}.block.{index % 12}.weight" for index in range(count // 4)]
    moments = {
        index: {name: torch.zeros(256) for name in ("step", "exp_avg", "exp_avg_sq")} for index in range(len(names))
    }
    return {"model": {name: torch.zeros(256) for name in names}, "optimizer": {"state": moments}}


def flattening() -> None:
    small, large = tensors(300), tensors(TENSORS)
    tell("flatten_300_s", "s", lambda: seconds(lambda: flatten(small)))
    tell("flatten_100k_s", "s", lambda: seconds(lambda: flatten(large)))
    flat = flatten(large)
    entries = {
        key: format.LeafEntry(block.kind, block.dtype, block.shape, "model.safetensors", 1024 * at, 1024, "0" * 32, {})
        for at, (key, block) in enumerate(flat.leaves.items())
    }
    manifest = format.Manifest(
        step=1,
        phase="step",
        epoch=None,
        created=format.utc(time.time()),
        run="",
        attempt=1,
        parent=None,
        metrics={},
        best=None,
        note=None,
        document={},
        files={"model.safetensors": format.FileEntry(1024 * TENSORS, "0" * 32)},
        leaves=entries,
        tree=flat.tree,
    )
    data = format.encode(manifest)
    tell("manifest_encode_100k_s", "s", lambda: seconds(lambda: format.encode(manifest)))
    tell("manifest_decode_100k_s", "s", lambda: seconds(lambda: format.decode(data, "manifest")))


def listing(place: Path) -> None:
    root = place / "many"
    many.make(root, checkpoints=CHECKPOINTS, leaves=LEAVES)
    command = [HOLDFAST, "ls", str(root)]
    tell("ls_10000_s", "s", lambda: seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)))
    tell("open_newest_s", "s", lambda: seconds(lambda: Store(root).latest().manifest))


if __name__ == "__main__":
    main()
