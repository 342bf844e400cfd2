"""Pruning: removes what a rule does not keep,
after reading the newest remaining checkpoint back from the medium.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from .. import bulk, retention
from ..errors import Damaged
from ..rules import Rule
from ..threads import Hook, nothing
from . import attempt as attempts
from .attempt import Attempt
from .checkpoint import Checkpoint
from .checkpoint_index import CheckpointIndex
from .format import FileEntry
from .sharing import FileLinker

PART_BYTES = 1 << 30  # read back and recorded as sound in groups of this size


class DamagedSince(Damaged):
    """A file was sound when it was read back and was linked later, and is damaged now."""


class DamagedBefore(Damaged):
    """A checkpoint that must stay is damaged; it is older than the newest one."""

    def __init__(self, text: str, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(text)
        self.checkpoint = checkpoint  # None on ranks that only learned of it


def prunable_checkpoints(
    index: CheckpointIndex, rule: Rule, spared: Collection[str] = ()
) -> list[Checkpoint]:
    """Return the checkpoints that `rule` does not keep, oldest first, except those in `spared`."""
    facts = index.facts()
    kept = retention.keep(facts, rule).union(spared)
    return [index.checkpoint(each.name) for each in facts if each.name not in kept]


class PruningPlan(NamedTuple):
    """Which checkpoints a prune removes, and which it must read back first."""

    doomed: list[Checkpoint]
    # they remain, and are read back before others are removed; without the next
    needed: list[Checkpoint]
    finite: Checkpoint | None = None  # the newest whose weights are finite, likewise


def plan_pruning(
    index: CheckpointIndex, rule: Rule, spared: Collection[str], copied: Collection[str] = ()
) -> PruningPlan:
    """Plan which checkpoints are removed, and which must be sound before that: the newest that
    remains, and the `spared`.

    If the weights of the newest are not finite, the newest with finite ones must be sound, too.

    `copied`: others that stay, because they are being copied elsewhere.
    """
    doomed = prunable_checkpoints(index, rule, {*spared, *copied})
    goes = {checkpoint.path.name for checkpoint in doomed}
    stay = [checkpoint for checkpoint in index.checkpoints() if checkpoint.path.name not in goes]
    finite = retention.newest_finite(index.facts()) if doomed else None
    needed = [each for each in stay if each is stay[-1] or each.path.name in spared]
    sound = next((each for each in stay if finite and each.path.name == finite.name), None)
    return PruningPlan(doomed, needed, None if sound in needed else sound)


def read_back(
    attempt: Attempt,
    checkpoints: Sequence[Checkpoint],
    sharing: FileLinker,
    before_each: Hook = nothing,
    doomed: Sequence[Checkpoint] | None = None,
) -> None:
    """Read these checkpoints back from the medium, except files that need not be read again.

    `before_each` is called before each piece; what it raises ends this. `doomed`: the checkpoints
    that will be removed, if known.

    Raises:
        Damaged: one of these differs from what was committed.
    """
    bulk.release_chunks()  # reading needs additional memory
    with attempt.translate_errors("verify a checkpoint"):
        for checkpoint in checkpoints:
            sharing.reread_manifest()  # it may have been read long ago
            files = (sharing.known_lineage(checkpoint) or checkpoint.manifest).files
            for names in _read_groups(files, sharing.files_read_back(checkpoint, doomed)):
                before_each()
                for problem in sharing.problems(checkpoint, names, before_each):
                    attempt.require_ownership()
                    since = problem.path.name in sharing.files_read_early(checkpoint)
                    raise (DamagedSince if since else Damaged)(
                        f"{problem}; no older checkpoint was removed"
                    )
    before_each()


def read_back_finite(
    attempt: Attempt,
    checkpoint: Checkpoint | None,
    sharing: FileLinker,
    before_each: Hook = nothing,
) -> None:
    """Read back the newest checkpoint whose weights are finite, if there is a newer one.

    Raises:
        DamagedBefore: it differs from what was committed.
    """
    if checkpoint is not None:
        try:
            read_back(attempt, [checkpoint], sharing, before_each)
        except Damaged as error:
            raise DamagedBefore(str(error), checkpoint) from error


def _read_groups(files: Mapping[str, FileEntry], read: Collection[str]) -> list[set[str]]:
    """Return the names of files that are not in `read` yet, in groups of about `PART_BYTES`."""
    parts: list[set[str]] = [set()]
    size = 0
    for name, file in files.items():
        if name not in read:
            if size >= PART_BYTES:
                parts.append(set())
                size = 0
            parts[-1].add(name)
            size += file.size_bytes
    return parts


def discard(attempt: Attempt, plan: PruningPlan) -> list[Checkpoint]:
    """Delete what is doomed, and record it in the journal, with what was read back before. Return
    those that existed.
    """
    removed = [checkpoint for checkpoint in plan.doomed if _discard_one(attempt, checkpoint)]
    sound = [*plan.needed, *([plan.finite] if plan.finite else [])]
    attempt.record(
        "pruned",
        names=[checkpoint.path.name for checkpoint in removed],
        read_back=[checkpoint.path.name for checkpoint in sound],
    )
    attempts.retry_removals(attempt)
    return removed


def _discard_one(attempt: Attempt, checkpoint: Checkpoint) -> bool:
    try:
        attempts.discard(attempt, checkpoint.path)
    except FileNotFoundError:
        if attempt.is_fenced:
            raise
        return False
    return True
