"""What a save costs as ranks grow, besides the data: who writes what, the parts, the manifest. One process plays all
ranks.

Two states of 1,000 leaves: `replicated`, alike on every rank but for five leaves (DDP), and `divided`, a piece of each
leaf on every rank (FSDP). What rank 0 does while all others wait is timed whole; of what every rank does at the same
time, one rank's. Words go through a dictionary here: a rendezvous store asks some 50 us for each of the two that rank 0
takes from every rank.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from harness import scratch
from holdfast.collective import division
from holdfast.collective.division import LeafAssignment, RankState, WritePlan, assign_leaves
from holdfast.collective.rank_share import PartSeal
from holdfast.ranks import Ranks
from holdfast.state import tree
from holdfast.store import format, parts
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.format import MANIFEST, FileEntry, LeafEntry, Manifest, PartEntry
from holdfast.store.parts import Part
from holdfast.store.shards import StagedState

T = TypeVar("T")
Kind = Callable[[int, int], StagedState]

WORLDS = (1, 8, 64, 512, 4096)
LEAVES, OWN, ROUNDS = 1000, 5, 5
PLAYED = 4  # ranks whose parts are made; the others say what the last of these does


def main() -> None:
    division.SHARE_BYTES = 1  # as if there were enough for everybody
    with scratch(sys.argv[1] if len(sys.argv) > 1 else os.curdir) as place:
        for kind in (replicated, divided):
            before = 0.0
            for world in WORLDS:
                runs = [Save(kind, world, place / f"{kind.__name__}-{world}-{n}").times() for n in range(ROUNDS)]
                before = told(f"{kind.__name__}, {world} ranks", runs, before)


class Times(NamedTuple):
    """Seconds of one save."""

    lead: float  # what rank 0 does, while the others wait
    each: float  # what every rank does at the same time
    opening: float  # of what was saved, as one of the ranks


def told(title: str, runs: list[Times], before: float) -> float:
    """Print what they took; the median of all that is on the way of a save."""
    total = statistics.median(run.lead + run.each for run in runs)
    tell(f"{title}: planning and merge", "s", [run.lead + run.each for run in runs])
    tell(f"{title}: of these rank 0, while all wait", "s", [run.lead for run in runs])
    tell(f"{title}: opened as one of them", "s", [run.opening for run in runs])
    if before:
        tell(f"{title}: growth for 8 times the ranks", "x", [total / before])
    return total


def tell(figure: str, unit: str, runs: list[float]) -> None:
    line = {"table": "ranks", "figure": figure, "value": statistics.median(runs), "unit": unit, "runs": runs}
    print(json.dumps(line), flush=True)


def replicated(rank: int, world: int) -> StagedState:
    del world
    state = {f"layer{n}": np.full(4, n, np.float32) for n in range(LEAVES - OWN)}
    state |= {f"own{n}": np.full(4, rank, np.float32) for n in range(OWN)}
    flat = tree.flatten({"model": state, "position": {"rank": rank}})
    return StagedState(flat.tree, flat.leaves, [])


def divided(rank: int, world: int) -> StagedState:
    flat = tree.flatten({"model": {f"layer{n}": np.full(4, rank, np.float32) for n in range(LEAVES)}})
    place = {"of": [4 * world], "at": [4 * rank]}
    return StagedState(
        flat.tree, {key: msgspec.structs.replace(block, attrs=place) for key, block in flat.leaves.items()}, []
    )


class Dictionary:
    """A channel within one process."""

    def __init__(self) -> None:
        values: dict[str, bytes] = {}
        self.put, self.get = values.__setitem__, values.get
        self.drop = lambda key: values.pop(key, None)

    def reconnect(self) -> Dictionary:
        return self


class Save:
    """One save of `world` ranks, played in turn."""

    def __init__(self, kind: Kind, world: int, place: Path) -> None:
        self.kind, self.world, self.place = kind, world, place
        channel = Dictionary()
        self.ranks = [Ranks(rank, world, channel, timeout_s=9) for rank in range(world)]
        self.seconds = {"lead": 0.0, "each": 0.0, "opening": 0.0}
        place.mkdir()

    def times(self) -> Times:
        played = min(PLAYED, self.world)
        staged = [self.kind(rank, self.world) for rank in range(played)]
        mine = [
            RankState(staged[0]),
            *(RankState(each) for each in staged[1:-1]),
            self.timed("each", lambda: RankState(staged[-1])),
        ]
        sheet = mine[0].sheet
        self.said("sheet", [b""] * self.world, lambda _: encoded(sheet))
        answer = self.timed("each", lambda: encoded(mine[-1].reply_to(sheet, played - 1, ())))
        answers = [encoded(mine[0].reply_to(sheet, 0, ())), *[answer] * (self.world - 1)]
        decision = msgspec.msgpack.decode(
            self.said("plan", answers, lambda words: assign_leaves(words, mine[0], lambda _: None)),
            type=LeafAssignment,
        )
        plans = [each.plan(sheet, decision, set(), ranks) for each, ranks in zip(mine, self.ranks, strict=False)]
        seals = [self.sealed(rank, plan) for rank, plan in enumerate(plans[:-1])]
        seals.append(self.timed("each", lambda: self.sealed(played - 1, plans[-1])))
        seals += [self.like(seals[-1], rank) for rank in range(played, self.world)]
        self.said("commit", [encoded(seal) for seal in seals], lambda words: self.committed(words, staged[0].tree))
        self.timed("opening", lambda: self.opened(played - 1))
        return Times(**self.seconds)

    def timed(self, what: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        found = work()
        self.seconds[what] += time.perf_counter() - began
        return found

    def said(self, topic: str, words: list[bytes], then: Callable[[list[bytes]], bytes]) -> bytes:
        """What rank 0 makes of everybody's words; only its own time counts."""
        for ranks, word in zip(self.ranks[1:], words[1:], strict=True):
            ranks.gather(topic, encoded([word, None]))
        found = self.timed("lead", lambda: self.ranks[0].run_on_all(topic, lambda: words[0], then))
        for ranks in self.ranks[1:]:
            ranks.announce(topic)
        return found

    def sealed(self, rank: int, plan: WritePlan) -> PartSeal:
        """A part as if its shards were there: only what is said of them is made."""
        shard = parts.shard_prefix(rank) + "model.safetensors"
        leaves = {
            plan.keys[key]: LeafEntry(
                block.kind, block.dtype, tuple(block.shape), shard, 0, 0, format.digest(b""), dict(block.attrs)
            )
            for key, block in plan.blocks.items()
        }
        data = parts.encode(Part(rank, {shard: FileEntry(0, format.digest(b""))}, leaves, plan.tree))
        (self.place / format.part_file_name(rank)).write_bytes(data)
        return PartSeal(PartEntry(format.part_file_name(rank), 0, plan.firsts), parts.file_entry(data))

    def like(self, seal: PartSeal, rank: int) -> PartSeal:
        return PartSeal(PartEntry(format.part_file_name(rank), 0), seal.file)

    def committed(self, words: list[bytes], body: Any) -> bytes:
        seals = [msgspec.msgpack.decode(word, type=PartSeal) for word in words]
        manifest = Manifest(
            step=1,
            phase="step",
            epoch=None,
            created=format.utc(0),
            run="0",
            attempt=1,
            parent=None,
            metrics={},
            best=None,
            note=None,
            document={},
            files={seal.entry.part: seal.file for seal in seals},
            ranks=[seal.entry for seal in seals],
            leaves={},
            tree=body,
        )
        (self.place / MANIFEST).write_bytes(format.encode(manifest))
        return b""

    def opened(self, rank: int) -> None:
        view = Checkpoint(self.place).as_rank(rank)
        _ = view.tree, view.manifest


def encoded(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


if __name__ == "__main__":
    main()
