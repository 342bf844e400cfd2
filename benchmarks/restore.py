"""How long a live model and its optimizer wait for what was saved, cold and warm, and who notices a flipped bit."""

from __future__ import annotations

from collections.abc import Sequence

import ours
import peers
from contender import Raw
from harness import Column, Failed, Results, Turn, Worker, options, turns
from subject import contest

RAW = "raw limit: the fastest read"
CONTENDERS = {
    RAW: Raw,
    "Holdfast": ours.Restored,
    "torch.load": peers.TorchSave,
    "torch.load, mapped": peers.TorchMapped,
    "safetensors": peers.Safetensors,
    "DCP": peers.Dcp,
    "torchsnapshot": peers.Torchsnapshot,
    "Orbax (JAX, new arrays)": peers.OrbaxAsync,
}
COLUMNS = [
    Column("cold, s", "cold_s"),
    Column("x raw read", "cold_s", over=(RAW, "cold_s"), digits=2),
    Column("warm, s", "warm_s"),
    Column("x raw warm read", "warm_s", over=(RAW, "warm_s"), digits=2),
    Column("x the same into the state", "warm_s", over=(RAW, "into_state_s"), digits=2),
    Column("extra memory, MiB", "cold_extra_mib", digits=0),
    Column("first: cold, s", "first cold_s"),
    Column("notices a flipped bit", "first notices"),
]
NOTES = """
Medians (smallest to largest) of the rounds after the first; ratios are formed within a round. Each restore begins with
zeros in the live memory, and afterwards the table compares every byte with what was saved. Cold: the files were dropped
from the page cache. Warm: they were read into it. The raw read is the fastest of O_DIRECT with 2 and 4 threads and
buffered with 4. Its warm one is buffered with 2, through one buffer a thread that stays in a core's cache; and once
more into the memory of the state, where a restore has to bring the bytes. The last column: one bit in the middle of the
largest file was flipped and restored once more.
"""


def main() -> None:
    given = options("restore", sizes=[64, 512, 2048], doc=__doc__)
    with Results("restore", given) as results:
        for size in given.sizes:
            with contest(CONTENDERS, given, size) as ring:
                table(ring, size, given.rounds, results)
        results.publish(COLUMNS, NOTES)


def table(ring: Sequence[Worker], size: int, rounds: int, results: Results) -> None:
    kept = {
        worker.name: worker.ask("keep") for worker in ring
    }  # all of them before the first restore clears the memory
    for name, failed in kept.items():
        if isinstance(failed, Failed):
            results.add(size, Turn(0, name, failed))
    expected = next(digest for digest in kept.values() if not isinstance(digest, Failed))
    for turn in turns(ring, rounds, "restore_turn", expected):
        results.add(size, turn)
    for worker in [worker for worker in ring if not worker.failed]:
        noticed = worker.ask("notices", expected)
        noticed = f"its process died: {noticed.error}" if isinstance(noticed, Failed) else noticed
        results.add(size, Turn(0, worker.name, {"notices": noticed}))


if __name__ == "__main__":
    main()
