"""How long the loop waits for a save, when it is durable, and what memory that takes."""

from __future__ import annotations

import os

import ours
import peers
from contender import Raw
from harness import MIB, Column, Failed, Results, Turn, options, turns
from subject import contest

RAW = "raw limit: memcpy, O_DIRECT write"
CONTENDERS = {
    RAW: Raw,
    "Holdfast, synchronous": ours.Synchronous,
    "Holdfast, background": ours.Background,
    "torch.save": peers.TorchSave,
    "safetensors": peers.Safetensors,
    "DCP": peers.Dcp,
    "DCP async": peers.DcpAsync,
    "DCP async, kept stager": peers.DcpKept,
    "DCP async, overlapped": peers.DcpOverlapped,
    "torchsnapshot": peers.Torchsnapshot,
    "torchsnapshot async": peers.TorchsnapshotAsync,
    "Orbax async (JAX)": peers.OrbaxAsync,
}
KEEPING = ("DCP async, kept stager", "DCP async, overlapped")  # a copy of the state each, besides Holdfast's two
COLUMNS = [
    Column("loop waits, s", "wait_s", digits=4),
    Column("x memcpy", "wait_s", over=(RAW, "wait_s"), digits=2),
    Column("durable, s", "durable_s"),
    Column("x raw write", "durable_s", over=(RAW, "durable_s"), digits=2),
    Column("extra memory, MiB", "extra_mib", digits=0),
    Column("first save: loop waits, s", "first wait_s"),
    Column("first save: durable, s", "first durable_s"),
]
NOTES = """
Medians (smallest to largest) of the rounds after the first; ratios are formed within a round. Every contender's files
and directories are synced inside `durable`. A synchronous peer's loop waits until its own call returns, without our
fsync. DCP's overlapped mode: what the loop waits for in the save and in the next step, which computes longer than the
copy takes.
"""


def main() -> None:
    given = options("save", sizes=[64, 512, 2048, 4096], doc=__doc__)
    with Results("save", given) as results:
        for size in given.sizes:
            left_out = KEEPING if 9 * size * MIB > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") else ()
            fitting = {name: make for name, make in CONTENDERS.items() if name not in left_out}
            with contest(fitting, given, size) as ring:
                for turn in turns(ring, given.rounds, "save_turn"):
                    results.add(size, turn)
            for name in left_out:
                results.add(size, Turn(0, name, Failed("left out, all copies together would not fit into memory")))
        results.publish(COLUMNS, NOTES)


if __name__ == "__main__":
    main()
