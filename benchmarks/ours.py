"""Ours: Holdfast's ways to save and to restore, as contenders."""

from __future__ import annotations

from pathlib import Path

from contender import Contender, Saved
from harness import remove
from holdfast import Every, Last, Run, Store
from peers import compute, overlap_s
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

    overlap = False

    def prepare(self) -> None:
        super().prepare()
        self.run = Run(
            self.home / "run",
            self.live.objects(),
            every=Every(steps=1),
            keep=ALL,
            background=True,
            overlap=self.overlap,
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


class Overlapped(Background):
    """Run(background=True, overlap=True): the copy runs beside the next forward and backward; the step waits for its end."""

    overlap = True

    def prepare(self) -> None:
        super().prepare()
        first = self.live.model[0]
        first.grad = first.detach() * 0  # the step changes one tensor; bump() changes the others

    def save(self, path: Path) -> Saved:
        watch = Watch()
        self.run.safe_point()
        wait_s = watch()
        compute(overlap_s(self.setting))
        wait_s += stepped(self.live.optimizer)
        self.run.wait()
        return Saved(wait_s, watch())


def stepped(optimizer: object) -> float:
    """Take one step; the seconds that the hooks before it took, ours the last of them."""
    ends: list[float] = []
    watch = Watch()
    handle = optimizer.register_step_pre_hook(lambda *_: ends.append(watch()))  # type: ignore[attr-defined]
    began = watch()
    optimizer.step()  # type: ignore[attr-defined]
    handle.remove()
    return ends[0] - began


def _forget(run: Path) -> None:
    """Remove all checkpoints but the newest, by hand: pruning would read it back first."""
    found = sorted((run / "checkpoints").glob("step-*")) if run.is_dir() else []
    remove([each for each in found[:-1] if not each.is_symlink()])
