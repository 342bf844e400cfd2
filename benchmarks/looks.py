"""What it costs a save to look whether weights are finite: pairs of saves, with and without the look."""

from __future__ import annotations

from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

import ours
from contender import Contender, Saved
from harness import Column, Results, options, turns
from holdfast import Every, Run
from holdfast.state import finite
from ours import ALL
from subject import Watch, contest


class Background(ours.Background):
    """A run's saves beside the loop."""

    def looks_turn(self) -> dict[str, Any]:
        figures = self.save_turn()
        return {**figures, "cpu_s": self.cpu_s}

    def save(self, path: Path) -> Saved:
        before = process_time()
        saved = super().save(path)
        self.cpu_s = process_time() - before
        return saved


class Synchronous(Background):
    """A run whose saves the loop waits for."""

    def prepare(self) -> None:
        Contender.prepare(self)
        self.run = Run(self.home / "run", self.live.objects(), every=Every(steps=1), keep=ALL, background=False)
        self.run.__enter__()

    def save(self, path: Path) -> Saved:
        before, watch = process_time(), Watch()
        self.run.safe_point()
        saved = Saved(watch(), watch())
        self.cpu_s = process_time() - before
        return saved


class Blind(Synchronous):
    """The same, with no look: only a benchmark has that."""

    def prepare(self) -> None:
        patch.object(finite, "can_look", return_value=False).start()
        super().prepare()


class BlindBackground(Background):
    def prepare(self) -> None:
        patch.object(finite, "can_look", return_value=False).start()
        super().prepare()


WITH, WITHOUT = "with the look", "without"
PAIRS = {
    "looks": {WITH: Background, WITHOUT: BlindBackground},
    "looks_synchronous": {WITH: Synchronous, WITHOUT: Blind},
}
COLUMNS = [
    Column("loop waits, s", "wait_s", digits=4),
    Column("x without", "wait_s", over=(WITHOUT, "wait_s")),
    Column("durable, s", "durable_s"),
    Column("x without", "durable_s", over=(WITHOUT, "durable_s")),
    Column("processor, s", "cpu_s"),
    Column("x without", "cpu_s", over=(WITHOUT, "cpu_s")),
]
NOTES = """
Medians (smallest to largest) of the rounds after the first. All of the state are parameters and moments. Ratios are
formed within a round.
"""


def main() -> None:
    given = options("looks", sizes=[2048], rounds=15, doc=__doc__)
    for table, pair in PAIRS.items():
        with Results(table, given) as results:
            for size in given.sizes:
                with contest(pair, given, size) as ring:
                    for turn in turns(ring, given.rounds, "looks_turn"):
                        results.add(size, turn)
            results.publish(COLUMNS, NOTES)


if __name__ == "__main__":
    main()
