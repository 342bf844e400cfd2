"""Last batch: what is special about the safe point behind an epoch's last batch.

Code behind the batch loop may use names that only the loop's body sets: `loss`, a meter. A process
that starts from a checkpoint of this safe point does not run that body, so the code may fail.
Therefore a periodic save, and a stop that has the time, wait for the next safe point, which is the
end of the epoch's body. Any other save is taken here, and the checkpoint before it stays until the
next save. If the code fails in such a process, the next one takes that one.
"""

from __future__ import annotations

import time

import msgspec

from .. import interval
from ..errors import HoldfastError, RanksError
from ..legible import nth
from ..ranks import Ranks
from ..state.captured import AttributeSet
from ..store.checkpoint import Checkpoint
from ..store.store import Store
from ..terminal import say
from .carried import variables_left_by_body
from .position import RunProgress
from .report import Reporter
from .tracked import Tracked
from .visible import script_frames

BEGINNING = "the beginning"  # of the run, as what a start goes on from
SHORT_S = 1.0  # so much longer than the safe point a process may take to stop
_INSIDE = ("epochs", "batches")
_WAIT, _SAVE = b"wait", b"save first"  # rank 0's decisions


class LastBatchPolicy(msgspec.Struct):
    """Decides what to do at the safe point after an epoch's last batch: save, stop, or wait
    for the epoch's end.
    """

    _ranks: Ranks
    _progress: RunProgress
    stop: str | None = None  # why the run stops at the next safe point
    saves_first: bool = False  # the run saves at this safe point nevertheless
    # names that the code behind it reads, and only the body that did not run sets
    body_sets: list[str] = []
    _body_s: float | None = None  # the longest time so far from here to the next safe point
    _is_behind: bool = False  # whether the last safe point was behind an epoch's last batch
    _skipped: bool = False  # this process began after an epoch's last batch, and its loop has ended

    def note_safe_point(self) -> None:
        """Note a safe point, before the clock of the next step begins."""
        progress = self._progress
        if self._is_behind:
            self._body_s = max(self._body_s or 0.0, time.monotonic() - progress.last_point_s)
        self._is_behind = progress.position.phase == "step" and progress.batches_left == 0

    def should_delay_stop(
        self, reason: str, until_s: float | None, *, save_s: float, drain_s: float
    ) -> bool:
        """Whether the stop for this reason waits for the next safe point.

        It waits if the process certainly lives until then: it does until `until_s`. If that is
        unknown and the code until then is short, the run saves here first. `save_s`, `drain_s`:
        what saving, and mirrors afterwards, take.
        """
        if self.stop is not None or not self._is_batch_point():
            return False
        words, body_s = b"", self._body_s
        if self._is_behind and body_s is not None:
            fits = until_s is not None and not interval.must_stop(
                time.time(), until_s, save_s, body_s + drain_s
            )
            words = _WAIT if fits else _SAVE if body_s <= SHORT_S else b""
        agreed = self._ranks.announce("the last batch", words)
        if agreed:
            self.stop, self.saves_first = reason, agreed == _SAVE
        return bool(agreed)

    def should_delay_save(self) -> bool:
        """Whether a periodic save is delayed to the next safe point."""
        mine = _WAIT if self._is_behind else b""
        return self._is_batch_point() and bool(self._ranks.announce("the last batch", mine))

    def may_follow_last_batch(self) -> bool:
        """Whether this safe point may follow an epoch's last batch: it does, or the loader
        has no length.
        """
        return self._is_batch_point() and (self._is_behind or self._progress.batches_left is None)

    def report_skipped_body(self, name: str, tracked: Tracked, reporter: Reporter) -> None:
        """Report that the loop `name` ends without a batch, so that its body did not run in this
        process.

        If a later loop of the epoch continues, report it only if the code before that loop may need
        the body.
        """
        position = self._progress.position
        if self._progress.steps_here:
            return
        self._skipped = True
        names = self.body_sets = variables_set_by_body(tracked)
        line = (
            f"{reporter.attempt.root}: resumes behind the last "
            f"batch of epoch {nth(position.epoch - position.first_epoch)}: the code that follows "
            "the loop runs without the loop's body"
        )
        if names:
            reporter.warn(
                f"{line}, which sets {', '.join(names)}: keep that in run.vars",
                kind="behind_last_batch",
            )
        elif position.current == name:
            say(line)

    def note_body_runs(self) -> None:
        """Note that a loop's body runs in this process: the code after an earlier loop did
        not fail.
        """
        self._skipped = False

    def failed_because_resumed_here(self, error: BaseException) -> bool:
        """Whether the code behind the loop failed because this process resumed after the
        last batch.
        """
        ours = isinstance(error, HoldfastError) and not isinstance(error, RanksError)
        return (
            self._skipped
            and not self._progress.steps_here
            and isinstance(error, Exception)
            and not ours
        )

    def next_resume_point(
        self, error: BaseException, checkpoint: Checkpoint | None, store: Store
    ) -> str:
        """Return from where the start after such a failure resumes: an older checkpoint, BEGINNING,
        or "".

        BEGINNING only if the run's first epoch has no older checkpoint and a name that only the
        body sets has no value. Any other error may have another cause. `checkpoint`: where this
        process began.
        """
        names = [each.path for each in store.checkpoints()]
        if checkpoint is None or checkpoint.path not in names:  # it is another run's
            return ""
        if older := names[: names.index(checkpoint.path)]:
            return older[-1].name
        if self._progress.position.epoch_began or not isinstance(error, NameError):
            return ""
        return BEGINNING if any(f"'{name}'" in str(error) for name in self.body_sets) else ""

    def _is_batch_point(self) -> bool:
        """Whether this safe point follows a batch of the epoch. All ranks have the same answer."""
        return self._progress.position.phase == "step" and self._progress.walks.kinds == _INSIDE


def format_last_batch_failure(store: Store, before: str, error: str) -> str:
    """Return the line for such a failure: what the next start does, and what to change."""
    then = (
        f"the next start goes on from {before}"
        if before
        else "there is no older checkpoint to go on from"
    )
    return (
        f"{store.root}: {error} in the code behind an epoch's last batch, "
        f"which ran without the loop's body; {then}. "
        "Keep in run.vars what that code reads and the body sets"
        + ("" if before else "; or start with allow_fresh=True to begin anew")
    )


def variables_set_by_body(tracked: Tracked) -> list[str]:
    """Return the variables that the body of the run's present loop sets and the code behind the
    loop reads.

    Those that a restore restores are left out.
    """
    walking = script_frames()
    if not walking:
        return []
    frame = walking[-1]
    held = {id(each) for each in tracked.self_restoring_objects().values()} | {
        id(each) for each in tracked.objects.values()
    }
    fields = [each for each in tracked.objects.values() if isinstance(each, AttributeSet)]
    kept = {name for each in fields if each.target is frame.f_globals for name in each.names}
    values = {**frame.f_globals, **frame.f_locals}
    left = variables_left_by_body(frame.f_code, frame.f_lasti) - kept
    return sorted(name for name in left if id(values.get(name)) not in held)
