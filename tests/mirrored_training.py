"""Trains, saves at each step, copies to mirrors, and says how long the loop ever waited.

    mirrored_training.py '{"path": ..., "mirror": [URL], "every": 1, "kept": 20, "worker": [SCRIPT],
                           "committed": FILE, "enough": FILE}'

It ends when the file `enough` is there. `committed` gets a line for each checkpoint: its name, and the digest of its
manifest.
"""

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import Every, Last, Run
from holdfast.mirror import client
from holdfast.store import lineage, shards

STEP_S = 0.03
MOST_STEPS = 20_000


class Committed:
    """Writes down what was committed, once."""

    def __init__(self, run: Path, file: Path) -> None:
        self._checkpoints, self._file, self._known = run / "checkpoints", file.open("a"), set[str]()

    def look(self) -> None:
        found = {path.name for path in self._checkpoints.iterdir()} if self._checkpoints.is_dir() else set()
        for name in sorted(found - self._known):
            try:
                data = (self._checkpoints / name / "manifest.json").read_bytes()
            except FileNotFoundError:
                continue  # removed meanwhile
            self._known.add(name)
            self._file.write(json.dumps([name, hashlib.sha256(data).hexdigest()]) + "\n")
            self._file.flush()


def main():
    asked = json.loads(sys.argv[1])
    options: Any = client.WorkerClient.__init__
    options.__kwdefaults__["python"] = [sys.executable, *asked["worker"]]
    for module, name, value in (
        (client, "RETRY_S", [each / 10 for each in client.RETRY_S]),
        (lineage, "LINK_BYTES", 96 << 10),  # the leaf that never changes has a file of its own
        (shards, "LINK_BYTES", 96 << 10),
    ):
        setattr(module, name, value)
    state = {"w": np.zeros(4096, "float32"), "still": np.random.default_rng(0).random(16 << 10)}
    rule = Last(3) | Every(steps=asked["kept"])
    committed, waits = Committed(Path(asked["path"]), Path(asked["committed"])), []
    mirror = dict.fromkeys(asked["mirror"], rule)
    with Run(
        asked["path"], state, every=Every(steps=asked["every"]), keep=rule | Last(8), mirror=mirror, drain=90
    ) as run:
        ended = time.perf_counter()
        for _ in run.steps(MOST_STEPS):
            waits.append(time.perf_counter() - ended)
            state["w"] += 1
            time.sleep(STEP_S)
            committed.look()
            if Path(asked["enough"]).exists():
                break
            ended = time.perf_counter()
        before_end = time.perf_counter()
    committed.look()
    waits.sort()
    figures = {"steps": len(waits), "longest_s": waits[-1], "median_s": waits[len(waits) // 2]}
    print(json.dumps({**figures, "drained_s": time.perf_counter() - before_end}), flush=True)


if __name__ == "__main__":
    main()
