"""How much slower the steps of a training loop are while a save is written, and what a save costs the loop in all."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ours
import peers
from contender import Contender
from harness import Column, Results, options, turns
from subject import Watch, contest, sync_tree

BEFORE = 25  # steps without a save, on either side of those with one
MOST_S = 60.0


class Stepping(Contender):
    """Steps of about 30 ms: some of the parameters are layers of a net and get gradients, on one compute thread."""

    def prepare(self) -> None:
        super().prepare()
        import torch

        self.torch = torch
        torch.set_num_threads(1)
        self.trained = list(self.live.model)[: max(1, round(3 * 2048 / self.setting.size_mib))]
        self.width = math.isqrt(self.trained[0].numel())
        self.input = torch.randn(32, self.width)
        for _ in range(5):
            self.step()

    def step(self) -> float:
        watch = Watch()
        x = self.input
        for layer in self.trained:
            x = self.torch.tanh(x @ layer[: self.width**2].view(self.width, self.width) / math.sqrt(self.width))
        self.torch.autograd.backward(x.square().mean())
        self.live.optimizer.step()
        self.live.optimizer.zero_grad()
        return watch()

    def begin(self, path: Path) -> Callable[[], bool]:
        """Begin to save; what tells whether it is durable."""
        raise NotImplementedError

    def steps_turn(self) -> dict[str, Any]:
        self.bump()
        self.turns += 1
        alone = [self.step() for _ in range(BEFORE)]
        watch = Watch()
        done = self.begin(self.home / str(self.turns))
        wait_s = watch()
        flying: list[float] = []
        while not done() and watch() < MOST_S:
            flying.append(self.step())
        durable_s = watch()
        alone += [self.step() for _ in range(BEFORE)]
        self.forget()
        alone_s = statistics.median(alone)
        slower = statistics.median(flying) / alone_s - 1 if flying else math.nan
        lost_s = wait_s + sum(flying) - alone_s * len(flying)
        figures = {"alone_ms": alone_s * 1e3, "slower_percent": slower * 100, "wait_s": wait_s, "lost_s": lost_s}
        return {**figures, "durable_s": durable_s, "steps_beside": len(flying)}


class Background(Stepping, ours.Background):
    def begin(self, path: Path) -> Callable[[], bool]:
        checkpoints = self.home / "run" / "checkpoints"
        before = len(list(checkpoints.iterdir())) if checkpoints.is_dir() else 0
        self.run.safe_point()
        return lambda: len(list(checkpoints.iterdir())) > before


class Beside(Stepping):
    """A peer: its save is waited for and synced by a thread, the loop only asks whether it is done."""

    def start(self, path: Path) -> Any:
        """Begin to save; what can be waited for."""
        raise NotImplementedError

    def begin(self, path: Path) -> Callable[[], bool]:
        started = self.start(path)

        def settle() -> None:
            started.wait() if hasattr(started, "wait") else started.result()
            sync_tree(path)

        thread = threading.Thread(target=settle)
        thread.start()
        return lambda: not thread.is_alive()


class Dcp(Beside, peers.DcpAsync):
    start = peers.DcpAsync.start


class DcpKept(Beside, peers.DcpKept):
    start = peers.DcpKept.start


class Torchsnapshot(Beside, peers.TorchsnapshotAsync):
    start = peers.TorchsnapshotAsync.start


CONTENDERS = {
    "Holdfast, background": Background,
    "DCP async": Dcp,
    "DCP async, kept stager": DcpKept,
    "torchsnapshot async": Torchsnapshot,
}
COLUMNS = [
    Column("step alone, ms", "alone_ms", digits=1),
    Column("slower beside a save, %", "slower_percent", digits=1),
    Column("steps beside it", "steps_beside", digits=0),
    Column("loop waits, s", "wait_s", digits=4),
    Column("a save costs the loop, s", "lost_s"),
    Column("durable, s", "durable_s"),
]
NOTES = """
Medians (smallest to largest) of the rounds after the first. One compute thread. Slower: the median step while the
save is in flight against the median step before and after. What a save costs the loop: its wait, and what all steps
beside it took longer.
"""


def main() -> None:
    given = options("steps", sizes=[512, 2048], doc=__doc__)
    with Results("steps", given) as results:
        for size in given.sizes:
            with contest(CONTENDERS, given, size) as ring:
                for turn in turns(ring, given.rounds, "steps_turn"):
                    results.add(size, turn)
        results.publish(COLUMNS, NOTES)


if __name__ == "__main__":
    main()
