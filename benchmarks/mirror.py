"""How long the loop waits for its saves with a mirror, and without one: in pairs, one place after the other.

    benchmarks/mirror.py --sizes 16 --rounds 7     with the packages of the extras s3 and sftp, moto and sshd

Each turn is a run of its own that saves at every few steps. Places: none, a folder, moto's S3, OpenSSH's sftp.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness import MIB, Column, Failed, Results, Turn, options, scratch

sys.path.append(str(Path(__file__).parents[1] / "tests"))

SAVES, STEPS_PER_SAVE, STEP_S = 12, 10, 0.02
PLACES = ("without a mirror", "a folder", "S3", "sftp")


@contextmanager
def places(home: Path) -> Iterator[dict[str, Callable[[str], Any]]]:
    """For each place: the URL of a run in it; None without one."""
    from servers import s3_server, sftp_server

    with ExitStack() as around:
        s3 = around.enter_context(s3_server())
        (home / "server").mkdir()
        sftp = around.enter_context(sftp_server(home / "server"))
        os.environ.update({**s3.environment, **sftp.environment})
        urls = (lambda _: None, lambda name: str(home / "mirror" / name), s3.url, sftp.url)
        (home / "mirror").mkdir()
        yield dict(zip(PLACES, urls, strict=True))


def turn(run_path: Path, url: str | None, size_mib: int) -> dict[str, float]:
    """One run: the waits of its loop at steps with a save and without, and how long its end took."""
    import numpy as np

    from holdfast import Every, Last, Run

    state = {"w": np.random.default_rng(0).random(size_mib * MIB // 8)}
    every, waits = Every(steps=STEPS_PER_SAVE), list[float]()
    with Run(run_path, state, every=every, keep=Last(2), mirror=url, drain=60) as run:
        ended = time.perf_counter()
        for _ in run.steps(SAVES * STEPS_PER_SAVE):
            waits.append(time.perf_counter() - ended)
            state["w"] += 1
            time.sleep(STEP_S)
            ended = time.perf_counter()
        before_end = time.perf_counter()
    saves = [each for step, each in enumerate(waits) if step and step % STEPS_PER_SAVE == 0][1:]
    others = [each for step, each in enumerate(waits) if step % STEPS_PER_SAVE > 1]
    return {
        "save_ms": statistics.median(saves) * 1e3,
        "longest_ms": max(saves) * 1e3,
        "other_us": statistics.median(others) * 1e6,
        "total_ms": sum(waits[STEPS_PER_SAVE * 2 :]) * 1e3,
        "end_s": time.perf_counter() - before_end,
    }


WITHOUT = (PLACES[0], "total_ms")
COLUMNS = [
    Column("a save, ms", "save_ms", digits=2),
    Column("the longest, ms", "longest_ms", digits=2),
    Column("a step without a save, µs", "other_us", digits=0),
    Column("all waits, ms", "total_ms", digits=1),
    Column("all waits, against none", "total_ms", over=WITHOUT, digits=2),
    Column("the end, s", "end_s", digits=2),
]
NOTES = """
Medians (smallest to largest) of the rounds after the first. Servers, worker and loop share the cores. The ratio is
formed in each round. The end waits for the last copy (`drain`).
"""


def main() -> None:
    given = options("mirror", sizes=[16], rounds=7, doc=__doc__)
    with Results("mirror", given) as results, scratch(given.scratch) as home, places(home) as urls:
        for size in given.sizes:
            for number in range(given.rounds + 1):
                first = number % len(PLACES)
                for name in (*PLACES[first:], *PLACES[:first]):
                    results.add(size, Turn(number, name, _figures(home, urls[name], f"{size}-{number}", size)))
        results.publish(COLUMNS, NOTES)


def _figures(home: Path, url: Callable[[str], Any], name: str, size_mib: int) -> dict[str, float] | Failed:
    run_path = home / f"run-{name}"
    try:
        return turn(run_path, url(name), size_mib)
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(run_path, ignore_errors=True)


if __name__ == "__main__":
    main()
