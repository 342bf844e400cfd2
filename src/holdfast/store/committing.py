"""CheckpointWriter: builds, commits and links the checkpoints of a run, and removes those that no
rule keeps.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from .. import disk, scan
from ..errors import Damaged, DiskError, NoSpace, NotFound, UsageError
from ..provenance import document
from ..rules import Best, Rule, parts
from ..terminal import warn
from . import attempt as attempts
from . import claiming, divided, format, pruning
from .attempt import Attempt
from .checkpoint import Checkpoint
from .checkpoint_index import CheckpointIndex
from .format import MANIFEST, CheckpointName, LeafEntry, Manifest
from .refusal import disk_error
from .shards import SaveAbandoned
from .sharing import FileLinker
from .signing import Signer

_SPARE_BYTES = 1 << 20  # of the manifest's fixed part, directories and the journal


class ManifestFields(NamedTuple):
    """Optional fields of a manifest besides the state."""

    phase: str = "step"
    epoch: int | None = None
    metrics: Mapping[str, Any] = {}
    note: str | None = None
    document: Mapping[str, Any] = {}


class Copier(Protocol):
    """Copies checkpoints to other directories, the mirrors."""

    def protected_names(self) -> Collection[str]:
        """Names of the checkpoints that are being copied,
        or are about to be: they are not pruned.
        """
        ...

    def yield_space(self) -> None:
        """Protect no checkpoint until the next save, because the disk space is needed."""
        ...


class NoCopier:
    """The copier of a run without mirrors."""

    def protected_names(self) -> Collection[str]:
        return ()

    def yield_space(self) -> None:
        return


class CheckpointWriter:
    """The writing part of a store, for the owner of the run. Threads write one after another."""

    def __init__(
        self,
        index: CheckpointIndex,
        sharing: FileLinker,
        keep: Rule | None,
        *,
        take_over: bool,
        private: bool = False,
    ) -> None:
        self.root, self.index, self.sharing = index.root, index, sharing
        self.keep = keep
        self.private = private
        self.take_over = take_over or os.environ.get("HOLDFAST_TAKE_OVER") == "1"
        self.attempt: Attempt | None = None  # None: nothing was written yet
        self.parent: str | None = None  # name of the checkpoint before the next one
        # names of that checkpoint's weights that are not finite (the first ones)
        self.not_finite: Sequence[str] = ()
        self._turn = threading.RLock()  # one thread at a time claims or writes
        self.copies: Copier = NoCopier()
        # names of checkpoints that no rule removes before the next save
        self.protected: Collection[str] = ()
        # directories of saves that failed, and could not be removed
        self._failed: set[Path] = set()
        # its commit failed, perhaps after the rename: it may be there, not durable
        self._unsure: str | None = None
        self.signer: Signer | None = None  # signs the manifests
        self._elsewhere = claiming.RemoteFacts()

    # -- owning
    # ----------------------------------------------------------------------------------------------

    def claim(self) -> Attempt:
        """Become the run's owner if this store is not yet.

        Raises:
            UsageError: another attempt is or may be alive.
        """
        if self.attempt is None:
            with self._turn:
                if self.attempt is None:  # check again, now under the lock
                    self.attempt = self._begin_attempt()
        return self.attempt

    def _begin_attempt(self) -> Attempt:
        with translate_write_errors(self.root, "begin"):
            elsewhere = self._elsewhere
            # its checkpoints know it, too
            if elsewhere.run is None and not scan.lexists(self.root / "run.json"):
                elsewhere = elsewhere._replace(run=self.index.run())
            return claiming.claim(
                self.root, take_over=self.take_over, private=self.private, elsewhere=elsewhere
            )

    def set_remote_facts(self, elsewhere: claiming.RemoteFacts) -> None:
        """Set, before the claim, the facts about the run that its mirrors have."""
        self._elsewhere = elsewhere

    def set_copier(self, copies: Copier) -> None:
        """Use `copies` from now on: prune no checkpoint that it needs, as long as there is
        space.
        """
        self.copies = copies

    def protect(self, name: CheckpointName | None) -> None:
        """Keep the checkpoint `name`, whatever the rule, until another one is protected."""
        self.protected = () if name is None else (str(name),)

    def close(self) -> None:
        """Release the run, so that the next writer knows that this one has ended."""
        attempt = self.attempt
        if attempt is not None:
            with self.translate_errors(attempt, "close"):
                attempt.close("end", step=0)
                self.attempt = None

    @contextmanager
    def translate_errors(self, attempt: Attempt, what: str) -> Iterator[None]:
        # refuse a forked child before it waits for a lock that a thread of its parent may hold
        with attempt.translate_errors(what), self._turn:
            yield

    # -- one checkpoint
    # -------------------------------------------------------------------------------------------

    def create_partial(self, name: CheckpointName) -> Path:
        """Create an empty directory in the attempt's own directory; return its path.

        Raises:
            UsageError: that checkpoint exists already, or another attempt is or may be alive.
        """
        attempt = self.claim()
        partial = attempt.room / str(name)
        with self.translate_errors(attempt, "save"):
            if attempts.is_checkpoint(self.root / "checkpoints" / str(name)):
                # without this check the directory may be a later attempt's
                attempt.require_ownership()
                if str(name) != self._unsure:
                    raise UsageError(
                        f"{self.root}: {name} is already committed; checkpoints are immutable"
                    )
                attempts.move_to_quarantine(
                    attempt, self.root / "checkpoints" / str(name), "unsynced"
                )
            for path in {*self._failed, partial}:
                disk.remove_tree(path)
            self._failed.clear()
            try:
                disk.make_dir(partial)
            except OSError:
                self._failed.add(partial)  # NFS may have made it all the same
                raise
        return partial

    def continue_after(self, before: CheckpointName | None) -> None:
        """Let the next checkpoint follow `before`; later checkpoints than `before` are ignored."""
        self.parent = None if before is None else str(before)

    def discard_partial(self, partial: Path) -> None:
        """Remove the directory of a save that failed;
        if the disk refuses that, the next save removes it.
        """
        self._unsure = partial.name
        self._failed.add(partial)
        attempts.remove_if_possible(partial)

    def commit_partial(
        self, name: CheckpointName, partial: Path, fill: Callable[[Path], Manifest]
    ) -> Manifest:
        """Let `fill` complete the directory and return its manifest; then commit. On an error
        remove the directory.
        """
        attempt = self.claim()
        try:
            with self.translate_errors(attempt, "save"):
                manifest = fill(partial)
                disk.write(partial / MANIFEST, [format.encode(manifest, self.signer)])
                path = attempts.publish(attempt, partial, str(name))
                self.parent, self.not_finite = str(name), manifest.not_finite
                self.update_links()
                if manifest.ranks is None:
                    self.sharing.set_last_checkpoint(
                        path, manifest.created, manifest.files, manifest.leaves
                    )
        except Exception:
            self.discard_partial(partial)
            raise
        if self._unsure == partial.name:
            self._unsure = None
        return manifest

    def manifest(
        self,
        name: CheckpointName,
        facts: ManifestFields,
        files: dict[str, format.FileEntry],
        leaves: dict[str, LeafEntry],
        body: Any,
    ) -> Manifest:
        """Return the manifest of the checkpoint `name`."""
        attempt = self.claim()
        best = self.own_best_rule()
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
            not_finite=divided.nonfinite_leaves(leaves)[: format.MOST_NAMES],
        )

    @cached_property
    def _document(self) -> dict[str, Any]:
        return document()

    def require_space(self, need: int) -> None:
        """Require free space for a save, after deleting surplus checkpoints.

        Raises:
            NoSpace: `need` bytes, and some to spare, are not free, even after removing all that the
                rule does not keep.
        """
        need += _SPARE_BYTES
        free, advice = disk.free_bytes(self.root), "Free some space, or keep fewer checkpoints"
        if need > free and self.keep is not None:
            try:
                # the rule may not have been applied to the last save, if a stop interrupted it
                if self._prune_past_damage(self.keep):
                    free = disk.free_bytes(self.root)
                if need > free and self.copies.protected_names():
                    self.copies.yield_space()
                    self._prune_past_damage(self.keep)
                    free = disk.free_bytes(self.root)
            except Damaged as error:
                advice = f"Free some space: {error}"
        if need > free:
            raise NoSpace(
                f"{self.root}: the checkpoint and {_SPARE_BYTES >> 20} "
                f"MiB to spare need {need:,} bytes, and {free:,} "
                f"are free; nothing was written. {advice}"
            )

    # -- all of them
    # ----------------------------------------------------------------------------------------------

    def apply_rule(self, name: CheckpointName, leave: Callable[[], int] = lambda: 0) -> None:
        """Remove what the rule does not keep, after `name` was committed."""
        if self.keep is not None:
            with suppress(SaveAbandoned), self.warn_if_prune_fails():
                self.prune_except(self.keep, (str(name),), leave)

    @contextmanager
    def warn_if_prune_fails(self) -> Iterator[None]:
        """Warn, instead of raising, if older checkpoints cannot be removed: the new one is
        committed.

        A file that was damaged after it was read is written anew by the next save. An older
        checkpoint that must stay and is damaged moves to quarantine.
        """
        try:
            with self._quarantine_damaged():
                yield
        except pruning.DamagedSince as error:
            warn(f"{error}; the next save writes it anew")
        except (DiskError, NotFound) as error:
            warn(f"{error}. The new checkpoint is saved; older ones are removed after a later save")

    @contextmanager
    def _quarantine_damaged(self) -> Iterator[None]:
        try:
            yield
        except pruning.DamagedBefore as error:
            if error.checkpoint is None:
                raise
            warn(f"{error}; {error.checkpoint.path.name} moves to quarantine/")
            self.quarantine(error.checkpoint, "damaged")
            self.claim().record("quarantined", name=error.checkpoint.path.name, why=str(error))

    def _prune_past_damage(self, rule: Rule) -> list[Checkpoint]:
        """Prune as `prune_except` does. Move each damaged checkpoint that must stay to quarantine
        first.
        """
        while True:
            with self._quarantine_damaged():
                return self.prune_except(rule)

    def prune_except(
        self, rule: Rule, spared: Collection[str] = (), leave: Callable[[], int] = lambda: 0
    ) -> list[Checkpoint]:
        """Remove and return the checkpoints that the rule does not keep, except those in `spared`.

        Raises:
            SaveAbandoned: at most `leave()` checkpoints would be removed; none was.
        """
        if self.attempt is None and not pruning.prunable_checkpoints(self.index, rule, spared):
            return []
        attempt = self.claim()
        with self.translate_errors(attempt, "prune"):
            # plan as the owner: before that, another process might have been writing
            plan = pruning.plan_pruning(
                self.index, rule, spared, {*self.copies.protected_names(), *self.protected}
            )
            if not plan.doomed:
                return []

            def still_wanted() -> None:
                if len(plan.doomed) <= leave():
                    raise SaveAbandoned

            still_wanted()
            pruning.read_back(attempt, plan.needed, self.sharing, still_wanted, plan.doomed)
            pruning.read_back_finite(attempt, plan.finite, self.sharing, still_wanted)
            removed = pruning.discard(attempt, plan)
            self.update_links()
            return removed

    def quarantine(self, checkpoint: Checkpoint, why: str) -> Path:
        """Move a checkpoint aside without deleting it;
        `why` is a word or two that become part of its name.
        """
        attempt = self.claim()
        self.sharing.forget_last_checkpoint()
        with self.translate_errors(attempt, "move a checkpoint to quarantine"):
            path = attempts.move_to_quarantine(attempt, checkpoint.path, why)
            self.update_links()
        return path

    def empty_quarantine(self) -> None:
        """Remove for good what was set aside as damaged."""
        attempt = self.claim()
        with self.translate_errors(attempt, "empty the quarantine"):
            for path in scan.glob(attempt.root, "quarantine/*"):
                attempts.discard(attempt, path)
            attempts.retry_removals(attempt)

    def update_links(self) -> None:
        """Renew the links for users. Nothing depends on them, so errors are ignored."""
        for link, find in (("latest", self.index.latest), ("best", self.best)):
            with suppress(OSError, Damaged):
                self._update_link(link, find)

    def _update_link(self, link: str, find: Callable[[], Checkpoint]) -> None:
        attempt = self.claim()
        try:
            attempts.update_link(attempt, link, find().path.name)
        except NotFound:
            attempts.remove_dangling_link(attempt, link)

    def best(self) -> Checkpoint:
        """Return the checkpoint that this store's rule ranks first, or else the newest checkpoint's
        rule.

        Raises:
            NotFound: there is no rule, or no checkpoint has that metric.
        """
        return self.index.best(self.own_best_rule())

    def own_best_rule(self) -> Best | None:
        return (
            next((rule for rule in parts(self.keep) if isinstance(rule, Best)), None)
            if self.keep
            else None
        )


@contextmanager
def translate_write_errors(root: Path, what: str = "write here") -> Iterator[None]:
    """Raise an OSError in the block as a StoreError."""
    try:
        yield
    except OSError as error:
        raise disk_error(root, what, error) from error
