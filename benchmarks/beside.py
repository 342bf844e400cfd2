"""Who is faster, figure by figure, in the tables of this run: benchmarks/results/beside.md. Peers' wins come first."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

from harness import HERE
from targets import Lines, peers_of, read, spread


class Compared(NamedTuple):
    """A figure of which less is better."""

    title: str
    table: str
    ours: str
    key: str


FIGURES = [
    Compared("the loop waits for a save in the background, s", "save", "Holdfast, background", "wait_s"),
    Compared("that save is durable, s", "save", "Holdfast, background", "durable_s"),
    Compared("a synchronous save is durable, s", "save", "Holdfast, synchronous", "durable_s"),
    Compared("extra memory of a synchronous save, MiB", "save", "Holdfast, synchronous", "extra_mib"),
    Compared("extra memory of a save in the background, MiB", "save", "Holdfast, background", "extra_mib"),
    Compared("steps beside a save are slower by, %", "steps", "Holdfast, background", "slower_percent"),
    Compared("what a save costs the loop in all, s", "steps", "Holdfast, background", "lost_s"),
    Compared("cold restore, s", "restore", "Holdfast", "cold_s"),
    Compared("warm restore, s", "restore", "Holdfast", "warm_s"),
    Compared("extra memory of a restore, MiB", "restore", "Holdfast", "cold_extra_mib"),
    Compared("99% frozen: the third save, s", "frozen", "Holdfast, background", "third_s"),
    Compared("100,000 leaves: durable save, s", "leaves", "Holdfast", "durable_s"),
    Compared("100,000 leaves: warm restore, s", "leaves", "Holdfast", "restore_s"),
]
ASYNCHRONOUS = "async"  # in the names of the peers whose loop goes on


class Row(NamedTuple):
    ratio: float  # of our median to the best peer's
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=str(HERE / "results"))
    out = Path(parser.parse_args().out)
    rows = []
    for figure in FIGURES:
        lines = read(out / f"{figure.table}.jsonl")
        rows += [row(figure, lines, size) for size in sorted({line["size_mib"] for line in lines})]
    found = sorted((each for each in rows if each is not None), key=lambda each: -each.ratio)
    head = ["| wins | figure | size, MiB | Holdfast | the best peer | Holdfast / peer |", "|---|---|---|---|---|---|"]
    text = "\n".join([*head, *(each.text for each in found)]) + "\n"
    text += "\nMedians (smallest to largest) of the rounds after the first. In a restore Holdfast checks every byte;\n"
    text += "no peer notices a flipped bit (restore.md).\n"
    (out / "beside.md").write_text(text)
    print(text)


def row(figure: Compared, lines: Lines, size: int) -> Row | None:
    """Compare the medians at one size; None if one side has none there. Only peers of the same kind are compared."""
    here = [line for line in lines if line["size_mib"] == size and line["round"] > 0 and figure.key in line]
    in_background = figure.ours.endswith("background") and figure.table == "save"
    runs = {
        name: [line[figure.key] for line in here if line["contender"] == name]
        for name in dict.fromkeys(line["contender"] for line in here)
        if name == figure.ours or not in_background or ASYNCHRONOUS in name
    }
    ours, peers = runs.get(figure.ours), {name: runs[name] for name in peers_of(runs)}
    if not ours or not peers:
        return None
    best = min(peers, key=lambda name: statistics.median(peers[name]))
    ratio = statistics.median(ours) / max(statistics.median(peers[best]), 1e-9)
    wins = f"**{best}**" if ratio > 1 else "Holdfast"
    shown = f"{ratio:.2f}" if ratio < 100 else "over 100"
    text = f"| {wins} | {figure.title} | {size} | {spread(ours)} | {best}: {spread(peers[best])} | {shown} |"
    return Row(ratio, text)


if __name__ == "__main__":
    main()
