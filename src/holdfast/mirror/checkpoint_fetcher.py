"""CheckpointFetcher: fetches checkpoints of the run from its places: the newest at a start, and
files for repairs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .. import disk, scan
from ..errors import Damaged, NoSpace, NotFound, StoreError, Untrusted
from ..store import attempt as attempts
from ..store import format
from ..store.checkpoint import Checkpoint
from ..store.format import MANIFEST, CheckpointName
from ..store.store import Store
from ..terminal import say, warn
from .client import PlaceError, WorkerClient
from .options import prefix_with_place
from .run_lineage import RemoteCheckpoint, RunLineage, checkpoint_identity

QUIET_S = 180.0  # a fetch without progress for so long is given up


class CheckpointFetcher:
    """Fetches copies of one run's checkpoints from its mirrors while an attempt begins."""

    def __init__(
        self, store: Store, client: WorkerClient, shown: Sequence[str], present: RunLineage
    ) -> None:
        self.store, self.client, self._shown, self.present = store, client, shown, present
        self._attempt = store.claim()
        self._rejected: set[str] = set()  # names that are not fetched (again)
        # names that were fetched because the local one is unreadable
        self._replaced: set[str] = set()
        self._faults: list[str] = []
        self._most: CheckpointName | None = None  # the run went back to this checkpoint

    # Whole checkpoints
    # -------------------------------------------------------------------------------------------

    def quarantine_orphans(self) -> None:
        """Move local checkpoints that are not in the run's lineage to quarantine: the run
        continued elsewhere.
        """
        for name in self.present.orphaned_checkpoints():
            why = "the run went on elsewhere, without it"
            self.store.quarantine(self.store.index.checkpoint(name), "other-lineage")
            self._attempt.record("quarantined", name=name, why=why)
            self._attempt.flush(sync=True)
            say(f"{self.store.root}: {name} is set aside: {why}")

    def fetch_newer_than(self, local: Checkpoint | None) -> Checkpoint | None:
        """Fetch the newest checkpoint of the lineage that is newer than `local`, and commit it
        here; None: none is.

        Raises:
            StoreError: it exists, and could not be fetched.
        """
        least = None if local is None else format.parse_name(local.path.name)
        for found in self.present.checkpoints_at_places():
            beyond = self._most is not None and found.name.order > self._most.order
            if least is not None and found.name.order <= least.order:
                return None
            if beyond or str(found.name) in self._rejected or self._is_here(found.name):
                continue
            fetched = self._fetch_from_nearest(found)
            if fetched is not None:
                return fetched
        return None

    def fetch(self, step: int, *, finite: bool) -> None:
        """Fetch the newest checkpoint of that step, unless it is here or no mirror holds one.

        `finite`: prefer the newest one whose weights are finite.
        """
        found = [each for each in self.present.checkpoints_at_places() if each.name.step == step]
        for each in ([each for each in found if each.finite or not finite] or found)[:1]:
            if not self._is_here(each.name):
                self._fetch_from_nearest(each)

    def ignore_newer_than(self, to: CheckpointName) -> None:
        """Fetch no checkpoint that is newer than `local` from now on."""
        self._most = to

    def reject(self, name: str) -> None:
        """Never fetch the checkpoint of this name in this start."""
        self._rejected.add(name)

    @property
    def why_not_start_fresh(self) -> str:
        """Why the run must not begin from scratch,
        although there is no checkpoint; empty: it may.
        """
        if self._faults:
            return "; ".join(self._faults)
        return (
            ""
            if self.present.began_from_scratch
            else "the run has checkpoints elsewhere, and no place has one of them"
        )

    def _is_here(self, name: CheckpointName) -> bool:
        return attempts.is_checkpoint(self.store.index.checkpoint(name).path)

    def _fetch_from_nearest(self, found: RemoteCheckpoint) -> Checkpoint | None:
        """Fetch a checkpoint from the nearest place that has it whole; None: no place has."""
        silent = without = ""
        self._rejected.add(str(found.name))
        for place, folder in found.at:
            try:
                return self._fetch_from(found, place, folder)
            except PlaceError as error:
                why = f"{found.name}: {prefix_with_place(self._shown[place], str(error))}"
                if error.kind == "full":
                    raise NoSpace(f"{self.store.root}: {why}") from error
                if error.kind not in ("damaged", "gone"):
                    silent, without = why, self._shown[place]
                self._faults.append(why)
                warn(f"{self.store.root}: {why}")
        if silent:
            raise StoreError(
                f"{silent}. The newest checkpoint is there only. Try again when it answers, or "
                f'begin without it: Run(..., without="{without}")'
            )
        return None

    def replace_with_copy(self, checkpoint: Checkpoint) -> bool:
        """Replace a local checkpoint that cannot be read by a whole copy; return whether that
        succeeded.

        The local one is moved to quarantine only after the copy is complete.
        """
        name = checkpoint.path.name
        found = next(
            (each for each in self.present.checkpoints_at_places() if str(each.name) == name), None
        )
        if found is None or name in self._replaced:
            return False
        self._replaced.add(name)
        for place, folder in found.at:
            try:
                self._fetch_from(found, place, folder, instead_of=checkpoint)
            except PlaceError as error:
                warn(
                    f"{checkpoint.path}: cannot be read; "
                    f"{prefix_with_place(self._shown[place], str(error))}"
                )
            else:
                return True
        return False

    def _fetch_from(
        self, found: RemoteCheckpoint, place: int, folder: int, instead_of: Checkpoint | None = None
    ) -> Checkpoint:
        began, name = time.monotonic(), str(found.name)
        partial = self._attempt.room / name
        with self._attempt.translate_errors("fetch a checkpoint"):
            disk.remove_tree(partial)
            disk.make_dir(partial)
            got = self.client.ask_one(
                "fetch", {"attempt": folder, "name": name, "into": str(partial)}, place, QUIET_S
            )
            if checkpoint_identity(partial) != found.digest:
                raise PlaceError("damaged", "its manifest has changed since it was listed")
            self._require_signed(partial, f"{name} at {self._shown[place]}")
            if instead_of is not None:
                self.store.sharing.forget_last_checkpoint()
                attempts.move_to_quarantine(self._attempt, instead_of.path, "unreadable")
                self._attempt.record(
                    "quarantined", name=name, why="it cannot be read, and a place has it"
                )
            path = attempts.publish(self._attempt, partial, name)
        took_s = time.monotonic() - began
        self._attempt.record(
            "fetched",
            checkpoint=name,
            place=self._shown[place],
            size_bytes=got["size_bytes"],
            took_s=round(took_s, 3),
        )
        say(f"{self.store.root}: {name} comes from {self._shown[place]}, in {took_s:.1f} s")
        return self.store.index.checkpoint_at(path)

    def _require_signed(self, partial: Path, where: str) -> None:
        """Require a valid signature on a fetched checkpoint.

        Raises:
            Untrusted: this run's checkpoints are signed, and what was fetched is not; it was
                removed.
        """
        try:
            _ = self.store.index.checkpoint_at(partial).head
        except Untrusted as error:
            disk.remove_tree(partial)
            why = str(error).removeprefix(f"{partial / MANIFEST}: ")
            raise Untrusted(
                f"{where}: {why}; remove it there, or leave that place out: without=..."
            ) from None

    # Healing
    # ----------------------------------------------------------------------------------------------

    def repair_files(self, checkpoint: Checkpoint) -> bool:
        """Replace the damaged files of a local checkpoint by those of an identical copy; return
        whether all are whole.

        The manifest must be sound: it tells which copy is identical. Other checkpoints that share a
        file get the new one, too.
        """
        try:
            digest = checkpoint_identity(checkpoint.path)
            at = next(
                (
                    found.at
                    for found in self.present.checkpoints_at_places()
                    if found.digest == digest
                ),
                [],
            )
            damaged = (
                sorted({problem.path for problem in checkpoint.problems(cold=True)}) if at else []
            )
        except (Damaged, NotFound, OSError):
            return False
        names = [
            path.relative_to(checkpoint.path).as_posix()
            for path in damaged
            if path != checkpoint.path
        ]
        if (
            not names
            or MANIFEST in names
            or not all(_lies_in_run(checkpoint, name) for name in names)
        ):
            return False
        whole = all(self._repair_file(checkpoint, name, at) for name in names)
        self.store.sharing.forget_last_checkpoint()
        return whole

    def _repair_file(
        self, checkpoint: Checkpoint, name: str, at: Sequence[tuple[int, int]]
    ) -> bool:
        fresh = self._attempt.room / "healed"
        for place, folder in at:
            args = {
                "attempt": folder,
                "name": checkpoint.path.name,
                "file": name,
                "into": str(fresh),
            }
            try:
                with self._attempt.translate_errors("heal a checkpoint"):
                    disk.remove_tree(fresh)
                    self.client.ask_one("file", args, place, QUIET_S)
                    healed = self._replace_file(fresh, checkpoint, name)
            except PlaceError as error:
                warn(
                    f"{checkpoint.path / name}: is damaged, "
                    f"and was not healed from {self._shown[place]}: {error}"
                )
                continue
            self._attempt.record(
                "healed",
                checkpoint=checkpoint.path.name,
                file=name,
                place=self._shown[place],
                of=healed,
            )
            say(
                f"{checkpoint.path / name}: was damaged; "
                f"its bytes come from {self._shown[place]}, digest checked"
            )
            return True
        return False

    def _replace_file(self, fresh: Path, checkpoint: Checkpoint, name: str) -> list[str]:
        """Put a file in the place of a damaged one, wherever that is linked. Return the
        checkpoints that got it.
        """
        wanted, old = checkpoint.manifest.files[name], _inode(checkpoint.path / name)
        sharing = [
            each
            for each in self.store.checkpoints()
            if old is not None and _inode(each.path / name) == old
        ]
        others = [
            each
            for each in sharing
            if each.path != checkpoint.path and _has_committed_file(each, name, wanted)
        ]
        others = [each for each in others if _lies_in_run(each, name)]
        for each in others:
            passing = self._attempt.room / "healing"
            disk.remove_tree(passing)
            disk.link(fresh, passing)
            disk.replace(passing, each.path / name)
        disk.replace(fresh, checkpoint.path / name)
        for each in [*others, checkpoint]:
            disk.sync_dir((each.path / name).parent)
        return [each.path.name for each in [*others, checkpoint]]


def _lies_in_run(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a file lies in the run itself: a checkpoint that is a link belongs to another run."""
    return not any(scan.is_symlink(checkpoint.path / each) for each in Path(name).parents)


def _inode(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        facts = os.lstat(path)
        return facts.st_dev, facts.st_ino
    return None


def _has_committed_file(checkpoint: Checkpoint, name: str, wanted: format.FileEntry) -> bool:
    """Whether the checkpoint has committed these same bytes under that name."""
    with suppress(Damaged, NotFound):
        own = checkpoint.manifest.files.get(name)
        return own is not None and (own.size_bytes, own.digest) == (
            wanted.size_bytes,
            wanted.digest,
        )
    return False
