"""What it costs a save to look whether weights are finite: pairs of saves in one process, with and without the look.

    chrt -f 10 python benchmarks/looks.py --sizes 2048 --rounds 10

The order changes from pair to pair. Real-time priority keeps other programs' work on the processors out of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time
from unittest.mock import patch

import torch
from torch import nn

from harness import MIB, options, scratch
from holdfast import Every, Last, Run
from holdfast.state import finite
from subject import TENSORS, Watch

FIGURES = ("loop waits, s", "durable, s", "processor, s")


class Model:
    """Parameters of that size, in a run that saves whenever it is told to."""

    def __init__(self, size_mib: int, path: Path, *, background: bool) -> None:
        items = size_mib * MIB // 4 // TENSORS
        self.model = nn.ParameterList([nn.Parameter(torch.randn(items)) for _ in range(TENSORS)])
        self.run = Run(path, {"model": self.model}, every=Every(steps=1), keep=Last(1), background=background)

    def save(self, *, look: bool) -> tuple[float, ...]:
        """Change all weights and save them; return the `FIGURES` of it."""
        with torch.no_grad():
            for parameter in self.model:
                parameter.add_(1e-3)
        with patch.object(finite, "can_check", return_value=look):
            before, watch = process_time(), Watch()
            self.run.safe_point()
            wait_s = watch()
            self.run.wait()
            return wait_s, watch(), process_time() - before


def measured(size_mib: int, pairs: int, path: Path, *, background: bool) -> Mapping[bool, Sequence[tuple[float, ...]]]:
    """The figures of each save, with the look and without."""
    found: dict[bool, list[tuple[float, ...]]] = {True: [], False: []}
    model = Model(size_mib, path, background=background)
    with model.run:
        model.save(look=True)  # the first one touches the memory
        for pair in range(pairs):
            for look in (True, False) if pair % 2 else (False, True):
                found[look].append(model.save(look=look))
    return found


def rows(found: Mapping[bool, Sequence[tuple[float, ...]]]) -> list[str]:
    """Medians, and the ratio within pairs: its median and its quartiles."""
    lines = []
    for place, figure in enumerate(FIGURES):
        looked, blind = ([each[place] for each in found[look]] for look in (True, False))
        ratios = sorted(one / other for one, other in zip(looked, blind, strict=True))
        low, _, high = statistics.quantiles(ratios, n=4)
        medians = f"{statistics.median(looked):.3f} | {statistics.median(blind):.3f}"
        lines.append(f"| {figure} | {medians} | {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}) |")
    return lines


def main() -> None:
    given = options("looks", sizes=[2048], rounds=10, doc=__doc__)
    for size in given.sizes:
        for background in (False, True):
            with scratch(given.scratch) as place:
                found = measured(size, given.rounds, place / "run", background=background)
            print(
                f"### {size:,} MiB, {'in the background' if background else 'the loop waits'}, {given.rounds} pairs\n"
            )
            print("\n".join(["| | with the look | without | ratio (quartiles) |", "|---|---|---|---|", *rows(found)]))


if __name__ == "__main__":
    main()
