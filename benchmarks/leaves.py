"""A state of 100,000 leaves of 1 KiB: a durable save, and a warm restore into fresh memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contender import Contender, Saved
from harness import Column, Results, options, turns
from holdfast import Store
from ours import ALL
from subject import Watch, contest, digest, sync_tree, warm

LEAVES = 100_000


class Leaves(Contender):
    def prepare(self) -> None:
        import torch

        torch.manual_seed(0)
        rows = torch.randn(LEAVES, 256)
        self.state = {f"leaf.{number}": row.clone() for number, row in enumerate(rows)}
        self.found: dict[str, Any] = {}

    def bump(self) -> None:
        for tensor in self.state.values():
            tensor[:1] += 1

    def clear(self) -> None:
        self.found = {}

    def digest(self) -> str:
        found = self.found or self.state
        return digest([found[name].numpy() for name in self.state])

    def leaves_turn(self) -> dict[str, Any]:
        figures = self.saved()
        path, expected = self.home / str(self.turns), self.digest()
        warm(path)
        watch = Watch()
        self.restore(path)
        figures["restore_s"] = watch()
        if self.digest() != expected:
            raise ValueError("what was restored is not what was saved")
        self.clear()
        self.forget()
        return figures


class Holdfast(Leaves):
    def save(self, path: Path) -> Saved:
        self.store = Store(path, keep=ALL)
        watch = Watch()
        self.store.save(self.state, step=self.turns)
        saved = Saved(watch(), watch())
        self.store.close()
        return saved

    def restore(self, path: Path) -> None:
        self.found = Store(path).load()


class TorchSave(Leaves):
    def save(self, path: Path) -> Saved:
        import torch

        watch = Watch()
        path.mkdir()
        torch.save(self.state, path / "state.pt")
        wait_s = watch()
        sync_tree(path)
        return Saved(wait_s, watch())

    def restore(self, path: Path) -> None:
        import torch

        self.found = torch.load(path / "state.pt", weights_only=True)


class Safetensors(Leaves):
    def save(self, path: Path) -> Saved:
        from safetensors.torch import save_file

        watch = Watch()
        path.mkdir()
        save_file(self.state, path / "state.safetensors")
        wait_s = watch()
        sync_tree(path)
        return Saved(wait_s, watch())

    def restore(self, path: Path) -> None:
        from safetensors.torch import load_file

        self.found = load_file(path / "state.safetensors")


CONTENDERS = {"Holdfast": Holdfast, "torch.save": TorchSave, "safetensors": Safetensors}
COLUMNS = [
    Column("durable save, s", "durable_s", digits=2),
    Column("warm restore, s", "restore_s", digits=2),
    Column("extra memory, MiB", "extra_mib", digits=0),
    Column("first save, s", "first durable_s", digits=2),
    Column("first restore, s", "first restore_s", digits=2),
]
NOTES = """
Medians (smallest to largest) of the rounds after the first; 100,000 leaves of 256 float32; every one compared
afterwards. DCP is left out: it takes about 25 s to save such a state, and as long to restore it.
"""


def main() -> None:
    given = options("leaves", sizes=[], doc=__doc__)
    with Results("leaves", given) as results:
        size = LEAVES >> 10
        with contest(CONTENDERS, given, size) as ring:
            for turn in turns(ring, given.rounds, "leaves_turn"):
                results.add(size, turn)
        results.publish(COLUMNS, NOTES)


if __name__ == "__main__":
    main()
