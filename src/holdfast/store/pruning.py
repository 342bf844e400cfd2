"""Pruning: what a rule does not keep goes, after the newest that stays was read back from the medium."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .. import bulk, retention
from ..errors import Damaged
from ..rules import Rule
from . import attempt as attempts
from .attempt import Attempt
from .checkpoint import Checkpoint
from .sharing import Sharing
from .shelf import Shelf


def prunable(shelf: Shelf, rule: Rule, spared: Collection[str] = ()) -> list[Checkpoint]:
    """What `rule` does not keep, oldest first; the `spared` stay whatever it says."""
    facts = shelf.facts()
    kept = retention.keep(facts, rule).union(spared)
    return [shelf.checkpoint(each.name) for each in facts if each.name not in kept]


def verify(attempt: Attempt, stay: Sequence[Checkpoint], spared: Collection[str], sharing: Sharing) -> None:
    """Read the newest of those that `stay`, and the `spared`, back from the medium.

    Raises:
        Damaged: one of these is not what was committed.
    """
    bulk.release()  # what is read needs buffers of its own
    with attempt.acting("verify a checkpoint"):
        for checkpoint in stay:
            if checkpoint is stay[-1] or checkpoint.path.name in spared:
                rest = checkpoint.manifest.files.keys() - sharing.read_back(checkpoint)
                for problem in checkpoint.problems(cold=True, only=rest):
                    attempt.require()
                    raise Damaged(f"{problem}; no older checkpoint was removed")


def discard(attempt: Attempt, doomed: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Delete them, and say so in the journal; those that somebody had not removed by hand."""
    removed = [checkpoint for checkpoint in doomed if _discarded(attempt, checkpoint)]
    attempt.record("pruned", names=[checkpoint.path.name for checkpoint in removed])
    return removed


def _discarded(attempt: Attempt, checkpoint: Checkpoint) -> bool:
    try:
        attempts.discard(attempt, checkpoint.path)
    except FileNotFoundError:
        if not attempt.room.is_dir():
            raise
        return False
    return True
