"""Ours: Holdfast's ways to save and to restore, as contenders."""

from __future__ import annotations

from pathlib import Path

from contender import Contender, Saved
from harness import remove
from holdfast import Every, Last, Run, Store
from subject import Watch

ALL = Last(1_000_000)  # nothing is pruned in a turn: the peers prune nothing either


class Synchronous(Contender):
    """Store.save: the loop stands still until it is durable."""

    def prepare(self) -> None:
        super().prepare()
        self.store = Store(self.home / "run")

    def forget(self) -> None:
        _forget(self.home / "run")

    def save(self, path: Path) -> Saved:
        watch = Watch()
        self.store.save(self.live.state(), step=self.turns)
        return Saved(watch(), watch())

    def close(self) -> None:
        self.store.close()


class Restored(Contender):
    """Entering a Run restores the newest checkpoint into the live model and optimizer, every digest checked."""

    def save(self, path: Path) -> Saved:
        watch = Watch()
        with Run(path, self.live.objects(), every=None, keep=ALL) as run:
            run.safe_point()
        return Saved(watch(), watch())

    def restore(self, path: Path) -> None:
        run = Run(path, self.live.objects(), every=None, keep=ALL)
        run.__enter__()
        self.run = run

    def digest(self) -> str:
        if hasattr(self, "run"):  # leaving is no part of the restore
            self.run.__exit__(None, None, None)
            del self.run
        return super().digest()


class Background(Contender):
    """Run(background=True): the loop waits for the copy."""

    def prepare(self) -> None:
        super().prepare()
        self.run = Run(
            self.home / "run",
            self.live.objects(),
            every=Every(steps=1),
            keep=ALL,
            background=True,
        )
        self.run.__enter__()

    def forget(self) -> None:
        _forget(self.home / "run")

    def save(self, path: Path) -> Saved:
        watch = Watch()
        self.run.safe_point()
        wait_s = watch()
        self.run.wait()
        return Saved(wait_s, watch())

    def close(self) -> None:
        self.run.__exit__(None, None, None)


def _forget(run: Path) -> None:
    """Remove all checkpoints but the newest, by hand: pruning would read it back first."""
    found = sorted((run / "checkpoints").glob("step-*")) if run.is_dir() else []
    remove([each for each in found[:-1] if not each.is_symlink()])
