"""What the tables of this run say to what Holdfast promises of its speed: benchmarks/results/targets.md."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import restore
import save
import start
from harness import HERE, Column, samples

Lines = Sequence[Mapping[str, Any]]


class Target(NamedTuple):
    """A figure of one contender, or its ratio to another's, that is to be at most `most`."""

    title: str
    most: float
    table: str
    contender: str
    key: str
    over: str | Iterable[str] | None = None  # another contender; several: the best of them in each round
    scale: float = 1.0
    limit: str = ""  # the other contender's figure, where it has another key


def peers_of(contenders: Iterable[str]) -> list[str]:
    return [name for name in contenders if not name.startswith(("raw", "Holdfast"))]


BACKGROUND = "Holdfast, background"
FROZEN = "Holdfast, background"  # with the time between two saves in which it reads back
INTO_STATE = "into_state_s"
TARGETS = [
    Target("loop waits, background, x memcpy", 1.25, "save", BACKGROUND, "wait_s", save.RAW),
    Target("loop waits, background, x DCP async", 0.35, "save", BACKGROUND, "wait_s", "DCP async"),
    Target("steps slower beside a save, %", 10, "steps", BACKGROUND, "slower_percent"),
    Target("durable, x raw write", 1.2, "save", BACKGROUND, "durable_s", save.RAW),
    Target("durable, x torch.save + fsync", 0.5, "save", BACKGROUND, "durable_s", "torch.save"),
    Target("durable, x the fastest peer", 1.0, "save", BACKGROUND, "durable_s", peers_of(save.CONTENDERS)),
    Target("extra memory of a synchronous save, MiB", 64, "save", "Holdfast, synchronous", "extra_mib"),
    Target("extra memory of a background save, x the state", 1.05, "save", BACKGROUND, "extra_mib", "size"),
    Target("cold restore, x raw read", 1.35, "restore", "Holdfast", "cold_s", restore.RAW),
    Target("cold restore, x the fastest peer", 1.0, "restore", "Holdfast", "cold_s", peers_of(restore.CONTENDERS)),
    Target(
        "warm restore, x raw read into the state", 1.8, "restore", "Holdfast", "warm_s", restore.RAW, limit=INTO_STATE
    ),
    Target("warm restore, x the fastest peer", 1.0, "restore", "Holdfast", "warm_s", peers_of(restore.CONTENDERS)),
    Target("99% frozen, third save: % of the bytes", 1.5, "frozen", FROZEN, "third_mib", "size", scale=100),
    Target("99% frozen, third save: x a full save", 0.1, "frozen", FROZEN, "third_over_full"),
    Target("the same, right after the second: x a full save", 0.3, "frozen", f"{FROZEN}, no pause", "third_over_full"),
    Target("100,000 leaves, durable save, s", 1.5, "leaves", "Holdfast", "durable_s"),
    Target("100,000 leaves, warm restore, s", 1.5, "leaves", "Holdfast", "restore_s"),
    Target("`from holdfast import Run` over bare Python, ms", 50, "start", start.IMPORT, start.OURS),
    Target("`holdfast --help` over bare Python, ms", 80, "start", start.HELP, start.OURS),
    *(Target(f"start until the first batch, {name}: ours, ms", 100, "start", name, start.OURS) for name in start.RUNS),
]


class Single(NamedTuple):
    """A figure of a table of single figures, that is to be at most `limit`, or at least, when more is better."""

    title: str
    limit: float
    table: str
    figure: str
    at_least: bool = False
    scale: float = 1.0


SINGLES = [
    Single("`run.batches` per batch, nothing due, µs", 10, "scale", "batch_us"),
    Single("`holdfast ls` of 10,000 checkpoints, s", 1.0, "scale", "ls_10000_s"),
    Single("opening the newest of them, ms", 50, "scale", "open_newest_s", scale=1e3),
    Single("resume at sample 10^9 of 10^10, ms", 1, "shuffle", "first 1,000 indices at 10^9 of 10^10"),
    Single("its memory, MiB", 1, "shuffle", "the same, memory"),
    Single("4096 ranks, replicated: planning and merge, s", 3, "ranks", "replicated, 4096 ranks: planning and merge"),
    Single("4096 ranks, divided: planning and merge, s", 3, "ranks", "divided, 4096 ranks: planning and merge"),
    Single("indices per second then, millions", 10, "shuffle", "Shuffle.walk", at_least=True, scale=1e-6),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=str(HERE / "results"))
    out = Path(parser.parse_args().out)
    rows = ["| figure | size, MiB | at most | median (smallest to largest) | |", "|---|---|---|---|---|"]
    rows += [row(target, at_size(read(out / f"{target.table}.jsonl"))) for target in TARGETS]
    rows += [row_of_single(single, out / f"{single.table}.jsonl") for single in SINGLES]
    text = "\n".join(rows) + "\n"
    (out / "targets.md").write_text(text)
    print(text)


def read(path: Path) -> Lines:
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if "contender" in line]


def at_size(lines: Lines, wanted: int = 2048) -> Lines:
    """The lines of one size: what is promised is promised for 2 GiB. Where that is missing, the largest."""
    sizes = {line["size_mib"] for line in lines}
    size = wanted if wanted in sizes else max(sizes, default=0)
    return [line for line in lines if line["size_mib"] == size]


def row(target: Target, lines: Lines) -> str:
    size = lines[0]["size_mib"] if lines else ""
    found = measured(target, lines)
    if not found:
        return f"| {target.title} | {size} | {target.most:g} | not measured | |"
    kept = statistics.median(found) <= target.most
    return f"| {target.title} | {size} | {target.most:g} | {spread(found)} | {'yes' if kept else 'no'} |"


def row_of_single(single: Single, path: Path) -> str:
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = [value * single.scale for line in lines if line.get("figure") == single.figure for value in line["runs"]]
    limit = f"{'at least ' * single.at_least}{single.limit:g}"
    if not found:
        return f"| {single.title} | | {limit} | not measured | |"
    middle = statistics.median(found)
    kept = middle >= single.limit if single.at_least else middle <= single.limit
    return f"| {single.title} | | {limit} | {spread(found)} | {'yes' if kept else 'no'} |"


def spread(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.3g} ({min(found):.3g} to {max(found):.3g})"


def measured(target: Target, lines: Lines) -> list[float]:
    """The figure in each round after the first."""
    if target.over is None or (isinstance(target.over, str) and target.over != "size"):
        over = None if target.over is None else (target.over, target.limit or target.key)
        return [value * target.scale for value in samples(lines, target.contender, Column("", target.key, over))]
    found = []
    for line in lines:
        if line["contender"] == target.contender and line["round"] > 0 and target.key in line:
            limit = line["size_mib"] if target.over == "size" else best(lines, target, line["round"])
            found += [line[target.key] / limit * target.scale] if limit else []
    return found


def best(lines: Lines, target: Target, number: int) -> float | None:
    """The smallest figure among the contenders that the target names, in one round."""
    names = set(target.over or ())
    here = (line for line in lines if line["round"] == number and line["contender"] in names)
    return min((line[target.key] for line in here if target.key in line), default=None)


if __name__ == "__main__":
    main()
