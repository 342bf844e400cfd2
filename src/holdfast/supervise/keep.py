"""Keep: commits the checkpoints of a program that we did not write into our store,
and returns them to it.
"""

from __future__ import annotations

import filecmp
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .. import journal, scan
from ..apps.program import Program
from ..apps.program import ProgramCheckpoint as Written
from ..apps.take import FileState, copy_if_unchanged, file_states
from ..children import processes
from ..errors import Damaged, DiskError, NotFound, StoreError, UsageError
from ..rules import Last
from ..store.checkpoint import Checkpoint
from ..store.format import MANIFEST, CheckpointName
from ..store.store import Store
from ..terminal import say, warn

KEEP = Last(3)
LEFT = "left by a start that was killed"  # the note of a checkpoint that was never seen unchanged
LEFT_WORD = "left"
# between two looks; a file unchanged from one to the next has settled, unless its program says how
# long
LOOK_S = 3.0
# after this many looks with a new checkpoint each, accept one that no process is writing
RESTLESS = 3
SOON_S = 0.1  # the shortest time between two looks while new files have not settled
UNSETTLED_S = 30.0  # warn if new files have not settled for so long
HELD_S = 60.0  # a file that a process holds open for writing has settled when unchanged for so long


class _ChangedDuringCopy(Exception):
    """The program changed a file while it was copied."""


class ProgramStore:
    """A supervisor's store of one program's checkpoints."""

    def __init__(self, root: Path, program: Program) -> None:
        self.store = Store(root, keep=KEEP)
        self.store.claim()
        self._program = program
        self._told_of: int | None = None  # the errno of a disk that fails, told once
        self._told = False  # whether we warned that files never settle
        self.forget_earlier_files()

    def newest_valid(self) -> Checkpoint | None:
        """Return the newest checkpoint whose every byte is as it was committed; None if there never
        was a checkpoint.

        Damaged ones are moved to quarantine/.

        Raises:
            StoreError: there were checkpoints, and none is left.
        """
        for checkpoint in reversed(self.store.checkpoints()):
            with suppress(NotFound):
                problem = _find_damage(checkpoint)
                if problem is None:
                    return checkpoint
                self.quarantine(checkpoint, "damaged", problem)
        aside = [path.name for path in scan.glob(self.store.root, "quarantine/step-*")]
        aside = [name for name in aside if not name.endswith(f"-{LEFT_WORD}")]
        if aside:
            raise StoreError(
                f"{self.store.root}: there were checkpoints, "
                "and none that would do is left; they are in "
                f"{self.store.root / 'quarantine'}: {', '.join(aside)}. "
                "To start from scratch, give another --run"
            )
        if gone := journal.unaccounted_checkpoints(journal.logs(self.store.root)):
            raise StoreError(
                f"{self.store.root}: checkpoints were saved, "
                f"the last was {gone[-1]}, and none is there any more: put "
                "them back. To start from scratch, give another --run"
            )
        return None

    def quarantine(self, checkpoint: Checkpoint, word: str, why: str) -> None:
        """Move it to quarantine/, and report that."""
        path = self.store.quarantine(checkpoint, word)
        attempt = self.store.claim()
        attempt.record("quarantined", name=checkpoint.path.name, why=why)
        attempt.flush(sync=True)
        warn(f"{checkpoint.path.name} {why}; it is now {path}")

    def forget_earlier_files(self) -> None:
        """Forget the files of earlier starts; called before a start."""
        self._seen: dict[Path, FileState] = {}
        self._since_s = 0.0  # when it was first seen in this state
        self._restless = 0  # number of looks since the last commit that found a changed checkpoint
        self._done: dict[Path, FileState] = {}  # the files committed during this start
        self._new_s: float | None = None  # since when there are new files that have not settled
        self.look_s = LOOK_S  # until the next look is due
        self.committed = 0

    def commit_settled(self, pids: Callable[[], Sequence[int]]) -> int | None:
        """Commit the program's new files if they no longer change; return the step, or None if
        nothing was committed.

        `pids` returns the processes that may still write them.
        """
        self.look_s = LOOK_S
        found, now = self._uncommitted_files()
        if found is None:
            return None
        if found.settle_s is not None:
            self.look_s = min(max(found.settle_s / 2, SOON_S), LOOK_S)
        if now != self._seen:
            self._seen, self._since_s = now, time.monotonic()
            self._restless += 1
        if found.whole:
            return self._commit_if_it_fits(found, now)
        if not self._has_settled(found) and (
            found.settle_s is not None or self._restless < RESTLESS
        ):
            self._warn_if_never_settled(found)
            return None
        if time.monotonic() - self._since_s < HELD_S and processes.any_writes(pids(), found.files):
            self._new_s = None
            return None
        return self._commit_if_it_fits(found, now)

    def commit_last(self, *, orderly: bool) -> int | None:
        """Commit the newest files after the program has ended; return the step, or None.

        Unless the end was `orderly`, the newest checkpoint may be incomplete.

        Raises:
            StoreError: it could not be committed.
        """
        found, now = self._uncommitted_files()
        if found is None:
            return None
        settled = found.whole or (now == self._seen and self._has_settled(found))
        return self._commit(found, now) if orderly or settled else None

    def commit_left_file(self, left: Written) -> int | None:
        """Commit the one file that an earlier start has left; return the step, or None if the store
        has it already.

        Several files may belong to different checkpoints: they are not kept, with a warning. If the
        program reads its own files, its next start moves those aside that differ.
        """
        if len(left.files) > 1:
            names = ", ".join(sorted(path.name for path in left.files))
            warn(
                f"{names}: written when the last start was killed, "
                "perhaps not all of them: they are not used"
            )
            return None
        return self._commit(left, file_states(left.files), LEFT)

    def commit_initial_files(self, found: Written) -> None:
        """Commit the files from which the program would resume by itself: a failed start could
        overwrite them.

        Raises:
            UsageError: another process is writing them.
        """
        if self._commit(found, file_states(found.files)) is None:
            names = ", ".join(sorted(path.name for path in found.files)[:3])
            raise UsageError(
                f"{names}: another process is writing there; stop it first. Nothing was started"
            )
        self.forget_earlier_files()

    def describe_kept(self) -> str:
        """Return the end of a sentence that says which checkpoint is kept."""
        steps = [each.step for each in self.store.checkpoints()]
        if not steps:
            return "; none of its checkpoint files was seen, so nothing was kept"
        return f"; {self.store.root} keeps its last checkpoint, step {steps[-1]}"

    def close(self) -> None:
        with suppress(StoreError):  # the closing line is not essential
            self.store.close()

    def _uncommitted_files(self) -> tuple[Written | None, dict[Path, FileState]]:
        """Return the program's files that are not committed,
        and the state of each; (None, ...) if there are none.
        """
        found = self._program.checkpoint()
        now = file_states(found.files) if found is not None else {}
        return (found, now) if now and now != self._done else (None, {})

    def _has_settled(self, found: Written) -> bool:
        settle_s = LOOK_S if found.settle_s is None else found.settle_s
        return time.monotonic() - self._since_s >= settle_s

    def _warn_if_never_settled(self, found: Written) -> None:
        now_s = time.monotonic()
        self._new_s = now_s if self._new_s is None else self._new_s
        if (
            self._told
            or found.settle_s is None
            or now_s - self._new_s < max(UNSETTLED_S, 3 * found.settle_s)
        ):
            return
        names = ", ".join(sorted(path.name for path in found.files)[:3])
        warn(
            f"{names}: never unchanged for {found.settle_s:g} s, "
            "so nothing of it could be kept since "
            f"{now_s - self._new_s:.0f} s: give a shorter `settle_s`, "
            "or let the program write to another name, rename "
            "it when it is complete, and set `settle_s = 0`"
        )
        self._told = True

    def _commit_if_it_fits(self, found: Written, now: dict[Path, FileState]) -> int | None:
        try:
            return self._commit(found, now)
        except DiskError as error:  # the next one may succeed, and the program still runs
            code = getattr(error.__cause__, "errno", 0)
            if code != self._told_of:
                warn(f"{error}; the program goes on")
            self._told_of = code
            return None

    def _commit(
        self, found: Written, now: dict[Path, FileState], note: str | None = None
    ) -> int | None:
        """Commit the files and return their step; None if the program was still writing."""
        newest = next((each.step for each in reversed(self.store.checkpoints())), -1)
        step = found.step if found.step is not None and found.step > newest else newest + 1
        if newest < 0 or self._done or not _has_same_bytes(found, self.store.latest()):
            began_s = time.monotonic()
            try:
                with (
                    self.store.directory(step=step, note=note) as path,
                    self.store.claim().translate_errors("keep a checkpoint"),
                ):
                    if not copy_if_unchanged(found, path) or file_states(found.files) != now:
                        raise _ChangedDuringCopy
            except _ChangedDuringCopy:
                self._seen = {}
                return None
            attempt = self.store.claim()
            attempt.record(
                "saved",
                step=step,
                checkpoint=str(CheckpointName(step)),
                save_s=round(time.monotonic() - began_s, 6),
            )
            attempt.flush()  # so that the journal is current even if the supervisor is killed later
            self.committed += 1
            say(f"{self.store.root}: kept the checkpoint of step {step}")
        else:
            step = newest
        self._done, self._told_of, self._restless = now, None, 0
        self._new_s, self.look_s = None, LOOK_S
        return step


def begin_of_unended_start(path: Path) -> float | None:
    """Return when the last start in the supervisor's journal `path` began, if the journal
    has no end of it.
    """
    with suppress(OSError):
        last = next(
            (each for each in reversed(journal.read(path)) if each["event"] in {"start", "exit"}),
            None,
        )
        if last is not None and last["event"] == "start":
            return float(last["time"])
    return None


def _find_damage(checkpoint: Checkpoint) -> str | None:
    try:
        return next((str(problem) for problem in checkpoint.problems()), None)
    except Damaged as error:
        return str(error)


def _has_same_bytes(found: Written, checkpoint: Checkpoint) -> bool:
    """Whether the files contain exactly the bytes of the checkpoint."""
    theirs = {
        (
            source.relative_to(found.root).as_posix() if found.root is not None else source.name
        ): source
        for source in found.files
    }
    ours = {
        path.relative_to(checkpoint.path).as_posix(): path
        for path in scan.glob(checkpoint.path, "**/*")
        if scan.is_file(path) and path != checkpoint.path / MANIFEST
    }
    filecmp.clear_cache()
    with suppress(OSError):  # a file may have just been removed
        return theirs.keys() == ours.keys() and all(
            filecmp.cmp(path, ours[name], shallow=False) for name, path in theirs.items()
        )
    return False
