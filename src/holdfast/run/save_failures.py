"""SaveFailures: saves that failed, or whose bytes were damaged on the way to the disk: what to retry and to report.

After damage the next safe point saves once more. If that is damaged, too, saves become rarer: on a disk that damages
what it writes, each of them leaves a checkpoint in quarantine/ that takes space.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..errors import Damaged, StoreError
from ..store import format
from ..store.problems import Problem
from ..store.shards import Abandoned
from ..store.store import Store
from ..terminal import say, warn
from .damaged import set_aside

MOST_PASSED = 7  # the most due saves that are skipped between two tries
_QUIET = 2  # so many saves in a row without known damage: the disk is trusted again
_ADVICE = "if that goes on, saves become rarer: look at the system's log (dmesg), and save to another disk"


class SaveFailures:
    """Counts failures and damage of one attempt's saves. On several ranks all count alike."""

    def __init__(self, store: Store, tell: Callable[..., None]) -> None:
        self._store, self._tell = store, tell
        self._failed = 0  # saves in a row that failed
        self._damaged = 0  # checkpoints that were found damaged, since the disk was last trusted
        self._own = 0  # of several ranks: files that this one alone found damaged, before all did
        self._quiet = 0  # saves since the last damage
        self._passing = 0  # due saves still to be skipped

    def failed(self, name: format.Name, error: BaseException, before: format.Name | None) -> bool:
        """Tell and journal that a save failed. Return whether the next safe point is to make up for it."""
        advice = ""
        self._failed += 1
        told, again = _is_told(self._failed), False
        if isinstance(error, Damaged | Abandoned):  # its own files, or the files to link
            told, again = self._count_damage(), self._damaged == 1 or isinstance(error, Abandoned)
        if isinstance(error, Damaged):
            advice = self._set_aside(name, before)
        if told and self._store.ranks.rank == 0:
            warn(f"step {name.step} is not saved, and training goes on: {error}{advice}")
        self._store.claim().record("save_failed", step=name.step, error=str(error))
        return again

    def damaged(self, problem: Problem) -> bool:
        """Count, and tell, damage of the last checkpoint. Return whether the next safe point is to save."""
        alone = self._store.ranks.alone
        if not alone:  # the other ranks do not know of it, and all must save at the same steps
            self._own += 1
        if self._count_damage() if alone else _is_told(self._own):
            self._tell(f"{problem}; the next save writes it anew; {_ADVICE}")
        return alone and self._damaged == 1

    def saved(self, name: format.Name) -> None:
        """Note that a save succeeded."""
        if self._failed:
            say(f"{self._store.root}: step {name.step} is saved; {self._failed} before it failed")
        self._failed = 0
        self._quiet += 1
        if self._quiet > _QUIET:
            self._damaged = self._passing = 0

    def passes_over(self) -> bool:
        """Whether to skip this due save."""
        if self._passing == 0:
            return False
        self._passing -= 1
        return True

    def _count_damage(self) -> bool:
        """Return whether to report it."""
        self._damaged, self._quiet = self._damaged + 1, 0
        self._passing = min(MOST_PASSED, 2 ** (self._damaged - 1) - 1)
        return _is_told(self._damaged)

    def _set_aside(self, name: format.Name, before: format.Name | None) -> str:
        """Move a checkpoint to quarantine/ that was damaged when it was read back after its commit."""
        store = self._store
        if store.parent != str(name):
            return ""
        store.continue_after(before)
        where = "the next start moves it to quarantine/"
        with suppress(StoreError):
            set_aside(store, store.index.checkpoint(name), "damaged", "damaged on its way to the disk")
            where = "it is in quarantine/"
        return f"; what the disk holds is not what was written; {where}; {_ADVICE}"


def _is_told(count: int) -> bool:
    """Whether to report number `count` in a row: the first, second, fourth, eighth."""
    return count & (count - 1) == 0
