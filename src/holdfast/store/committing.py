"""Committing: what a run's owner does to it: a checkpoint is begun, committed and pointed to, and what no rule keeps goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import Damaged, NoSpace, NotFound, StoreError, UsageError
from ..provenance import document
from ..rules import Best, Rule, parts
from ..terminal import warn
from . import attempt as attempts
from . import format, pruning
from .attempt import Attempt
from .checkpoint import Checkpoint
from .format import MANIFEST, Leaf, Manifest, Name
from .shards import Abandoned
from .sharing import Sharing
from .shelf import Shelf

_SPARE_BYTES = 1 << 20  # for the manifest's fixed part, directories and the journal


@dataclass(frozen=True)
class Facts:
    """What a checkpoint says of itself besides its state. All of it is optional."""

    phase: str = "step"
    epoch: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None
    document: Mapping[str, Any] = field(default_factory=dict)


class Committing:
    """The owner's side of a store; its threads write in turn."""

    def __init__(self, shelf: Shelf, sharing: Sharing, keep: Rule | None, begin: Callable[[], Attempt]) -> None:
        self.root, self.shelf, self.sharing = shelf.root, shelf, sharing
        self.keep, self._begin = keep, begin
        self.attempt: Attempt | None = None
        self.parent: str | None = None
        self._turn = threading.RLock()  # of this process's threads, to claim and to write

    # -- owning ---------------------------------------------------------------------------------------------------

    def claim(self) -> Attempt:
        """Become the run's owner, if this store is not yet."""
        if self.attempt is None:
            with self._turn:
                if self.attempt is None:  # still
                    self.attempt = self._begin()
        return self.attempt

    def close(self) -> None:
        """Give the run back."""
        attempt = self.attempt
        if attempt is not None:
            with self.acting(attempt, "close"):
                attempt.close("end", step=0)
                self.attempt = None

    @contextmanager
    def acting(self, attempt: Attempt, what: str) -> Iterator[None]:
        with attempt.acting(what), self._turn:  # a forked child is refused before it waits for a thread of its parent's
            yield

    # -- one checkpoint -------------------------------------------------------------------------------------------

    def begin(self, name: Name) -> Path:
        """An empty directory in the attempt's own room.

        Raises:
            UsageError: that checkpoint is committed already, or another attempt lives.
        """
        attempt = self.claim()
        partial = attempt.room / str(name)
        with self.acting(attempt, "save"):
            if attempts.is_checkpoint(self.root / "checkpoints" / str(name)):
                attempt.require()  # else it may be a successor's
                raise UsageError(f"{self.root}: {name} is already committed; checkpoints are immutable")
            disk.remove_tree(partial)
            disk.make_dir(partial)
        return partial

    def finish(self, name: Name, partial: Path, fill: Callable[[Path], Manifest]) -> Manifest:
        """Commit what `fill` makes of the directory, and says of it. When that fails, nothing is left of it."""
        attempt = self.claim()
        with self.acting(attempt, "save"):
            try:
                manifest = fill(partial)
                disk.write(partial / MANIFEST, [format.encode(manifest)])
                path = attempts.publish(attempt, partial, str(name))
            except Exception:
                attempts.clean_up(partial)
                raise
            self.parent = str(name)
            self.point()
            if manifest.ranks is None:
                self.sharing.remember(path, manifest.created, manifest.files, manifest.leaves)
        return manifest

    def manifest(
        self, name: Name, facts: Facts, files: dict[str, format.File], leaves: dict[str, Leaf], body: Any
    ) -> Manifest:
        """What a checkpoint says of itself."""
        attempt = self.claim()
        best = self.own_best()
        return Manifest(
            step=name.step,
            phase=name.phase,
            epoch=facts.epoch,
            created=format.utc(time.time()),
            run=attempt.run,
            attempt=attempt.number,
            parent=self.parent,
            metrics=format.pack_metrics(facts.metrics),
            best={"metric": best.metric, "direction": best.direction.__name__} if best else None,
            note=None if facts.note is None else str(facts.note),
            document=dict(facts.document or self._document),
            files=files,
            leaves=leaves,
            tree=body,
        )

    @cached_property
    def _document(self) -> dict[str, Any]:
        return document()

    def require_space(self, need: int) -> None:
        """
        Raises:
            NoSpace: so many bytes are not free, even without what the rule does not keep.
        """
        free = disk.free_bytes(self.root)
        if need + _SPARE_BYTES > free and self.keep is not None:
            with suppress(Damaged):  # the newest, which is why nothing was removed
                if self.prune(self.keep, spared=()):  # what a stop has left
                    free = disk.free_bytes(self.root)
        if need + _SPARE_BYTES > free:
            raise NoSpace(
                f"{self.root}: the checkpoint needs {need:,} bytes and {free:,} are free; nothing was written. "
                "Free some space, or keep fewer checkpoints"
            )

    # -- all of them ----------------------------------------------------------------------------------------------

    def apply_rule(self, name: Name, leave: Callable[[], int] = lambda: 0) -> None:
        """Remove what the rule does not keep, now that `name` is committed."""
        if self.keep is not None:
            with suppress(Abandoned), self.telling():
                self.prune(self.keep, spared=(str(name),), leave=leave)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """What is damaged since it was read is told, and no failure of the save: the next one meets it, and writes anew."""
        try:
            yield
        except pruning.DamagedSince as error:
            warn(f"{error}; the next save writes it anew")

    def prune(self, rule: Rule, spared: Collection[str], leave: Callable[[], int] = lambda: 0) -> list[Checkpoint]:
        """What was removed. Abandoned: it is no more than `leave` says, perhaps only now, and nothing was removed."""
        if self.attempt is None and not pruning.prunable(self.shelf, rule, spared):
            return []
        attempt = self.claim()
        with self.acting(attempt, "prune"):
            plan = pruning.plan(self.shelf, rule, spared)  # as the owner: before, another might have been at work
            if not plan.doomed:
                return []

            def still_wanted() -> None:
                if len(plan.doomed) <= leave():
                    raise Abandoned

            still_wanted()
            pruning.verify(attempt, plan.needed, self.sharing, still_wanted, plan.doomed)
            removed = pruning.discard(attempt, plan.doomed)
            self.point()
            return removed

    def quarantine(self, checkpoint: Checkpoint, why: str) -> Path:
        """Move a checkpoint aside."""
        attempt = self.claim()
        self.sharing.forget()
        with self.acting(attempt, "move a checkpoint to quarantine"):
            path = attempts.set_aside(attempt, checkpoint.path, why)
            self.point()
        return path

    def point(self) -> None:
        """Renew the links for people. They are not the truth: a failure is not one of the save's."""
        for link, find in (("latest", self.shelf.latest), ("best", self.best)):
            with suppress(OSError, Damaged):
                self._point_to(link, find)

    def _point_to(self, link: str, find: Callable[[], Checkpoint]) -> None:
        attempt = self.claim()
        try:
            attempts.point(attempt, link, find().path.name)
        except NotFound:
            attempts.unpoint(attempt, link)

    def best(self) -> Checkpoint:
        """The checkpoint that the rule ranks first, or else the newest one's.

        Raises:
            NotFound: no rule, or no checkpoint with that metric.
        """
        return self.shelf.best(self.own_best())

    def own_best(self) -> Best | None:
        return next((rule for rule in parts(self.keep) if isinstance(rule, Best)), None) if self.keep else None


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """What the system says is an error of the store's."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{root}: cannot write here: {error.strerror}") from error
