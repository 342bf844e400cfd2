"""What saves of one big array cost, of which each step overwrites one row in a hundred: in a ring, or scattered.

    python benchmarks/one_array.py GIB [ring|scattered] [background|stalled] [FOLDER]

One JSON line for each save: bytes written over those of the array, files, how long the loop waited, when the save was
durable, and the most memory that the process has had, over the array's bytes.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness import scratch
from holdfast import Every, Last, Run, journal

WIDTH, SAVES = 4096, 6  # bytes of a row


class Buffer:
    """A replay buffer of rows of bytes."""

    def __init__(self, rows: int) -> None:
        self.random = np.random.default_rng(0)
        self.rows = np.empty((rows, WIDTH), np.uint8)
        for start in range(0, rows, 1 << 16):
            part = self.rows[start : start + (1 << 16)]
            part[:] = self.random.integers(0, 256, part.shape, dtype=np.uint8)
        self.at = 0

    def push(self, kind: str) -> None:
        count = len(self.rows) // 100
        places = (self.at + np.arange(count)) % len(self.rows)
        if kind == "scattered":
            places = self.random.choice(len(self.rows), count, replace=False)
        self.rows[places] = self.random.integers(0, 256, (count, WIDTH), dtype=np.uint8)
        self.at = (self.at + count) % len(self.rows)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def main() -> None:
    size = float(sys.argv[1])
    kind, mode, folder = [*sys.argv[2:], *["ring", "background", os.curdir][len(sys.argv) - 2 :]]
    with scratch(folder) as place:
        buffer, seen = Buffer(int(size * (1 << 30)) // WIDTH), set[int]()
        root = Path(place) / "run"
        state = {"buffer": buffer}
        with Run(root, state, every=Every(steps=1), keep=Last(3), background=mode == "background") as run:
            for step in run.steps(SAVES + 1):
                run.wait()
                if step:
                    tell(root, buffer, seen, f"{size:g} GiB, {kind}, {mode}")
                if step == SAVES:
                    break
                time.sleep(size)  # what the next save links is read back meanwhile
                buffer.push(kind)


def tell(root: Path, buffer: Buffer, seen: set[int], what: str) -> None:
    saved = [event for log in journal.logs(root) for event in log.events if event["event"] == "saved"]
    newest = root / "checkpoints" / saved[-1]["checkpoint"]
    facts = [file.stat() for file in newest.iterdir()]
    written = sum(each.st_size for each in facts if each.st_ino not in seen)
    seen.update(each.st_ino for each in facts)
    line = {
        "table": "array",
        "array": what,
        "save": len(saved),
        "written_over_array": round(written / buffer.rows.nbytes, 4),
        "files": len(facts),
        "stall_s": saved[-1]["stall_s"],
        "save_s": saved[-1]["save_s"],
        "memory_over_array": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / buffer.rows.nbytes, 2),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
