"""What a safe point costs with nothing due, alone and with two ranks: benchmarks/ranks_steps.py [--step-ms 1]
[--steps 5000]

Each step is a wait of its length; what passes between two bodies is the safe point. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

RANKS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--run", help="of one rank: where its run lives")
    given = parser.parse_args()
    if given.run:
        rank(given)
        return
    for world in (1, RANKS):
        with tempfile.TemporaryDirectory() as place:
            for number, line in enumerate(together(world, given, place)):
                print(json.dumps({"figure": f"safe point, rank {number} of {world}", "unit": "microseconds", **line}))


def together(world: int, given: argparse.Namespace, place: str) -> list[dict[str, float]]:
    """What each rank has measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [__file__, "--step-ms", str(given.step_ms), "--steps", str(given.steps), "--run", f"{place}/run"]
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **rendezvous, "RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in range(world)
    ]
    return [json.loads(each.communicate()[0]) for each in ranks]


def rank(given: argparse.Namespace) -> None:
    from torch import distributed, nn  # by the ranks only

    from holdfast import Run

    distributed.init_process_group("gloo")
    took, busy, ended, so_far = [], 0.0, 0.0, 0.0
    with Run(given.run, {"model": nn.Linear(2, 2)}, every=None) as run:
        for _ in run.batches(range(given.steps)):
            began = time.perf_counter()
            if ended:
                took.append(1e6 * (began - ended))
                busy += time.thread_time() - so_far
            while time.perf_counter() < began + given.step_ms / 1000:
                pass
            ended, so_far = time.perf_counter(), time.thread_time()
    parts = statistics.quantiles(took, n=100)
    processor = 1e6 * busy / len(took)  # on a busy machine, what of the mean is its own
    print(
        json.dumps(
            {
                "mean": statistics.mean(took),
                "processor": processor,
                "p50": parts[49],
                "p99": parts[98],
                "largest": max(took),
            }
        )
    )


if __name__ == "__main__":
    main()
