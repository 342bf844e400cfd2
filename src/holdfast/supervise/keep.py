"""Keep: the checkpoints of a program that we did not write, committed into our store and handed back."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..apps.program import Checkpoint as Written
from ..apps.program import Program
from ..apps.take import Look, looks, take
from ..errors import Damaged, NoSpace, NotFound, StoreError
from ..rules import Last
from ..store.checkpoint import Checkpoint
from ..store.format import MANIFEST
from ..store.store import Store
from ..terminal import say, warn
from . import processes

KEEP = Last(3)
LOOK_S = 3.0  # between two looks; what has not changed from one to the next has settled
RESTLESS = 3  # looks that each find another one: it comes so often that it counts when nobody is writing it just now
HELD_S = 60.0  # what a process holds open for writing has settled when it has not changed for so long
SAME_BYTES = 1 << 20


class _Moving(Exception):
    """The program was writing after all."""


class Kept:
    """The store of one program's checkpoints, while a supervisor owns it."""

    def __init__(self, root: Path, program: Program) -> None:
        self.store = Store(root, keep=KEEP)
        self.store.claim()
        self._program = program
        self._seen: dict[Path, Look] = {}
        self._since_s = 0.0  # when it was first seen so
        self._restless = 0  # looks at which it had changed again, since the last commit
        self._done: dict[Path, Look] = {}  # what has been committed of this start
        self._complaint = ""
        self.committed = 0  # since the last `begin`

    def newest_valid(self) -> Checkpoint | None:
        """The newest checkpoint of which every byte is what was committed; None when there has been none yet.

        Damaged ones are moved to quarantine/.

        Raises:
            StoreError: there were some, and none is left.
        """
        for checkpoint in reversed(self.store.checkpoints()):
            with suppress(NotFound):
                problem = _problem(checkpoint)
                if problem is None:
                    return checkpoint
                self.set_aside(checkpoint, "damaged", problem)
        aside = sorted(path.name for path in self.store.root.glob("quarantine/step-*"))
        if aside:
            raise StoreError(
                f"{self.store.root}: there were checkpoints, and none that would do is left; they are in "
                f"{self.store.root / 'quarantine'}: {', '.join(aside)}. To start from scratch, give another --run"
            )
        return None

    def set_aside(self, checkpoint: Checkpoint, word: str, why: str) -> None:
        """Move it to quarantine/, and say so."""
        path = self.store.quarantine(checkpoint, word)
        attempt = self.store.claim()
        attempt.record("quarantined", name=checkpoint.path.name, why=why)
        attempt.flush(sync=True)
        warn(f"{checkpoint.path.name} {why}; it is now {path}")

    def begin(self) -> None:
        """Before a start."""
        self._done, self._seen, self._since_s, self._restless = {}, {}, 0.0, 0
        self.committed = 0

    def look(self, pids: Sequence[int]) -> int | None:
        """Commit what the program has written meanwhile, if it has settled; the step, if there was anything.

        `pids`: those who may still be writing it.
        """
        found = self._program.checkpoint()
        if found is None:
            return None
        now = looks(found.files)
        if not now or now == self._done:
            return None
        if now != self._seen:
            self._seen, self._since_s = now, time.monotonic()
            self._restless += 1
        quiet_s = time.monotonic() - self._since_s
        settled = quiet_s >= LOOK_S or self._restless >= RESTLESS
        if found.whole:
            return self._commit_if_it_fits(found, now)
        if not settled or (quiet_s < HELD_S and processes.writes(pids, found.files)):
            return None
        return self._commit_if_it_fits(found, now)

    def last(self, *, orderly: bool) -> int | None:
        """As `look`, after the program has ended. What it was writing when it crashed may be half a checkpoint.

        Raises:
            StoreError: it could not be committed.
        """
        found = self._program.checkpoint()
        now = looks(found.files) if found is not None else {}
        if found is None or not now or now == self._done:
            return None
        settled = found.whole or (now == self._seen and time.monotonic() - self._since_s >= LOOK_S)
        return self._commit(found, now) if orderly or settled else None

    def close(self) -> None:
        with suppress(StoreError):  # a successor owns it, or the disk is full: nothing is lost with a good-bye
            self.store.close()

    def _commit_if_it_fits(self, found: Written, now: dict[Path, Look]) -> int | None:
        try:
            return self._commit(found, now)
        except NoSpace as error:  # the next one may fit, and the program goes on
            if str(error) != self._complaint:
                warn(f"{error}; the program goes on")
            self._complaint = str(error)
            return None

    def _commit(self, found: Written, now: dict[Path, Look]) -> int | None:
        """The step under which it now lies in the store; None when the program was writing after all, or nothing is new."""
        newest = next((each.step for each in reversed(self.store.checkpoints())), -1)
        step = found.step if found.step is not None and found.step > newest else newest + 1
        if newest < 0 or self._done or not _same(found, self.store.latest()):
            try:
                with self.store.directory(step=step) as path, self.store.claim().acting("keep a checkpoint"):
                    if not take(found, path) or looks(found.files) != now:
                        raise _Moving
            except _Moving:
                self._seen = {}
                return None
            self.committed += 1
            say(f"{self.store.root}: kept the checkpoint of step {step}")
        else:
            step = newest
        self._done, self._complaint, self._restless = now, "", 0
        return step


def _problem(checkpoint: Checkpoint) -> str | None:
    try:
        return next((str(problem) for problem in checkpoint.problems()), None)
    except Damaged as error:
        return str(error)


def _same(found: Written, checkpoint: Checkpoint) -> bool:
    """Whether the files hold the very bytes of the checkpoint."""
    theirs = {
        (source.relative_to(found.root).as_posix() if found.root is not None else source.name): source
        for source in found.files
    }
    ours = {
        path.relative_to(checkpoint.path).as_posix(): path
        for path in checkpoint.path.rglob("*")
        if path.is_file() and path != checkpoint.path / MANIFEST
    }
    return theirs.keys() == ours.keys() and all(_equal(theirs[name], ours[name]) for name in theirs)


def _equal(a: Path, b: Path) -> bool:
    try:
        with open(a, "rb") as left, open(b, "rb") as right:
            if os.fstat(left.fileno()).st_size != os.fstat(right.fileno()).st_size:
                return False
            while block := left.read(SAME_BYTES):
                if block != right.read(len(block)):
                    return False
    except OSError:
        return False
    return True
