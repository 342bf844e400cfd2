"""One rank is killed at an instant that a seed chooses: whatever it was doing, the run goes on, and no rank hangs.

    python tests/rank_kills.py 50        # prints a line for each instant

An instant is a change of files, a look at one, a word to the other ranks, or a step. A dry run counts those of each
rank; their kinds are taken in turn, so that every phase of a commit is struck.
"""

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import holdfast.ranks
from faults import door, half_of
from holdfast.channel import send
from holdfast.data.order import derive_key
from holdfast.inspect.diff import same_state
from holdfast.store.store import Store
from rank_processes import everywhere
from rank_training import train

DEADLINE_S = 5.0  # that the others wait for the killed one
WORLD, STEPS = 3, 5  # of the eight steps, those that the first launch makes when nobody is killed before


class Aim(NamedTuple):
    """Which rank dies, in which launch, at which of its instants."""

    launch: int  # 0: from nothing; 1: from what it left
    rank: int
    kind: str  # of instant
    nth: int


INSTANTS = [  # kind, rank, launch: every phase of a step, a save, a restore, a fence
    ("step", 1, 0),
    ("rename checkpoints/step-#", 0, 0),  # the commit itself
    ("read checkpoints/rank-#-optimizer.safetensors", 2, 1),  # in the restore
    ("write attempts/rank-#-model.safetensors", 2, 0),  # torn
    ("word commit of step-#", 1, 0),  # its shards are durable, and nobody knows
    ("create attempts/manifest.json", 0, 0),  # all shards are, and there is no manifest
    ("word commit of step-#", 0, 0),  # committed, and nobody knows
    ("unlink attempts/manifest.json", 0, 0),  # an old checkpoint is half removed
    ("rename history/attempt-#.jsonl", 0, 1),  # an old attempt is half fenced
]


class Instants:
    """Told of each instant, in order; kills this process at the one that is meant."""

    looks = True  # faults.py tells of reads, too

    def __init__(self, aim: Aim | None) -> None:
        self.aim, self.seen = aim, list[str]()

    def __call__(self, call, perform):
        path = call.target or call.path or os.readlink(f"/proc/self/fd/{call.descriptor}")
        if call.name != "look":
            self.come(f"{call.name} {_place(path)}", partial(half_of, call) if call.name == "write" else None)
        elif "/step-" in path:
            self.come(f"read {_place(path)}")
        return perform()

    def come(self, kind, torn=None):
        self.seen.append(kind)
        aim = self.aim
        if aim is not None and aim.kind == kind and self.seen.count(kind) == aim.nth + 1:
            if torn is not None:
                torn()
            os.kill(os.getpid(), signal.SIGKILL)


def _place(path: str) -> str:
    """What kind of file it is: the same word for those of all steps, ranks and attempts."""
    where = next((name for name in ("attempts", "checkpoints", "history", "quarantine") if f"/{name}/" in path), "run")
    name = re.sub(r"[0-9a-f]{32}", "*", Path(path).name)
    return f"{where}/{re.sub(r'[0-9]+', '#', name)}"


def ranked(rank: int, path: str, steps: int | None, aim: Aim | None, launch: int) -> list[str]:
    """Train as one of several ranks; the instants it has come to."""
    instants = Instants(aim if aim is not None and (aim.rank, aim.launch) == (rank, launch) else None)
    put, step = send, torch.optim.AdamW.step

    def said(channel, key_, word):
        instants.come(f"word {re.sub(r'[0-9]+', '#', word.topic)}")
        put(channel, key_, word)

    def stepped(self, closure=None):
        instants.come("step")
        return step(self, closure)

    vars(holdfast.ranks)["send"], torch.optim.AdamW.step = said, stepped
    random.seed(rank)  # nobody draws from these two, and a checkpoint holds them
    np.random.seed(rank)
    with door(instants):
        train(rank, "ddp", path, steps=steps, background=True)
    return instants.seen


def launched(path: Path, steps: int | None, aim: Aim | None = None, launch: int = 0):
    """What became of each rank. One that hangs is ended by `everywhere`, with SIGABRT."""
    work = partial(ranked, path=str(path), steps=steps, aim=aim, launch=launch)
    return everywhere(WORLD, work, method="forkserver", timeout_s=DEADLINE_S if aim else 60.0)


class Reference(NamedTuple):
    """A run that nobody disturbs."""

    path: Path
    begun: Path  # as its first launch has left it
    seen: dict[tuple[int, int], list[str]]  # launch, rank -> its instants


def reference(place: Path) -> Reference:
    """A run of two launches that nobody disturbs, and what instants its ranks came to."""
    seen, begun = {}, place.with_name("begun")
    for launch, steps in enumerate((STEPS, None)):
        if launch:
            shutil.copytree(place, begun, symlinks=True)
        outcomes = launched(place, steps, launch=launch)
        assert [""] * WORLD == [outcome.error for outcome in outcomes]
        seen |= {(launch, rank): outcome.value for rank, outcome in enumerate(outcomes)}
    return Reference(place, begun, seen)


def aims(found: Reference, count: int, seed: int = 0) -> Iterator[Aim]:
    """So many instants: every kind in turn, of a rank and a launch that have come to it."""
    places: dict[str, list[tuple[int, int]]] = {}
    for place, kinds in sorted(found.seen.items()):
        for kind in dict.fromkeys(kinds):
            places.setdefault(kind, []).append(place)
    kinds = sorted(places, key=lambda kind: derive_key(seed, kind, "order"))
    for number in range(count):
        kind = kinds[number % len(kinds)]
        among = places[kind]
        launch, rank = among[derive_key(seed, number, "place") % len(among)]
        nth = derive_key(seed, number, "nth") % found.seen[launch, rank].count(kind)
        yield Aim(launch, rank, kind, nth)


def nth_of(found: Reference, kind: str, rank: int, launch: int = 0) -> Aim:
    """The middle one of the instants of that kind."""
    count = found.seen[launch, rank].count(kind)
    assert count, (kind, sorted({*found.seen[launch, rank]}))
    return Aim(launch, rank, kind, count // 2)


def ask(found: Reference, place: Path, aim: Aim) -> str:
    """Strike there; what came of it, in a few words, or nothing when the rank did not come there.

    Raises:
        AssertionError: a law is broken.
    """
    if aim.launch:
        shutil.copytree(found.begun, place, symlinks=True)
    outcomes = launched(place, (STEPS, None)[aim.launch], aim, aim.launch)
    dead = [rank for rank, outcome in enumerate(outcomes) if outcome.exit_code == -signal.SIGKILL]
    assert dead in ([], [aim.rank]), (aim, outcomes)
    assert not [each for each in outcomes if each.exit_code not in (0, -signal.SIGKILL)], (aim, outcomes)
    came = _told(outcomes) if dead else ""
    _require_readable(place)
    outcomes = launched(place, None, launch=2)
    assert [""] * WORLD == [outcome.error for outcome in outcomes], (aim, outcomes)
    _require_readable(place)
    differences = same_state(Store(found.path).latest(), Store(place).latest())
    assert not differences, (aim, [str(each) for each in differences])
    return came


def _told(outcomes) -> str:
    """The kinds of errors of the ranks that were not killed."""
    kinds = {outcome.error.partition(":")[0] for outcome in outcomes if outcome.exit_code != -signal.SIGKILL}
    return ", ".join(sorted(kinds - {""})) or "no error"


def _require_readable(place: Path) -> None:
    """Every checkpoint that exists, by every rank, every byte checked."""
    if not (place / "checkpoints").is_dir():
        return
    for checkpoint in Store(place).checkpoints():
        assert [] == list(checkpoint.problems())
        assert WORLD == checkpoint.world
        for rank in range(WORLD):
            checkpoint.as_rank(rank).load(placeholders=True)


@pytest.fixture(scope="module", name="undisturbed")
def undisturbed_run(tmp_path_factory):
    return reference(tmp_path_factory.mktemp("kills") / "run")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        found = reference(Path(base) / "reference" / "run")
        struck = 0
        for number, aim in enumerate(aims(found, chosen.count, chosen.seed)):
            came = ask(found, Path(base) / str(number) / "run", aim)
            struck += came != ""
            told = came or "came to no such instant"
            print(f"{number:3} launch {aim.launch} rank {aim.rank} {aim.kind} #{aim.nth}: {told}", flush=True)
    print(f"{struck} of {chosen.count} were struck")
    sys.exit(struck < 0.9 * chosen.count)  # a series that strikes nothing proves nothing


if __name__ == "__main__":
    main()
