"""Deferred saves: periodic saves that wait for a better safe point.

*Last batch.* Code behind the batch loop may use names that only the loop's body sets: `loss`, a
meter. A process that starts from a checkpoint behind an epoch's last batch does not run that body,
so the code may fail. Therefore a periodic save, and a stop that has the time, wait for the next
safe point, which is the end of the epoch's body. Any other save is taken here, and the checkpoint
before it stays until the next save. If the code fails in such a process, the next one takes that
one.

*Unproven.* A loader whose replay is not known to be equal, or a framework version that was not
tested: such a run saves at the ends of epochs, so that no start resumes in the middle of one. A
drill proves them: a killed run resumed inside its epochs and ended with the same bits. The drill
writes their digests to a file beside the run's directory, for the next start.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from .. import disk, interval, settings
from ..data import promise
from ..data.advice import Advice, other_samples
from ..errors import HoldfastError, RanksError
from ..interval import SafePointMark
from ..legible import nth
from ..ranks import Ranks
from ..script.carried import variables_left_by_body
from ..script.visible import script_frames
from ..state.captured import AttributeSet
from ..stateful.tracked import Tracked
from ..store import format
from ..store.checkpoint import Checkpoint
from ..store.store import Store
from ..terminal import say
from .position import RunProgress
from .report import Reporter

EVENT = "unproven"  # of a drilled run's journal
LEAST_STEPS = 1000  # the least number of steps that a save waits for an epoch's end
_FILE = "{}-replays.json"  # beside the run's directory: the digests of what a drill has proven
_UNPROVEN = msgspec.json.Decoder(promise.UnprovenCode)
_PROVEN = msgspec.json.Decoder(dict[str, str])


def read_proven(path: Path) -> dict[str, str]:
    """Return the digests of what a drill has proven for the run at `path`, with their names."""
    try:
        return _PROVEN.decode(_file(path).read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}


def record_proven(path: Path, found: dict[str, str]) -> Path:
    """Record more proven digests for the run at `path`; return the file."""
    disk.make_dirs(path.parent)
    disk.replace_with(_file(path), [format.json_bytes(read_proven(path) | found)])
    return _file(path)


def _file(path: Path) -> Path:
    return path.with_name(_FILE.format(path.name))


class EpochEndSaves(msgspec.Struct):
    """Delays saves to the end of an epoch where a start from inside the epoch is not proven
    exact.
    """

    _ranks: Ranks
    _progress: RunProgress
    _reporter: Reporter
    _by_steps: bool  # the run's interval is a number of steps
    _is_drilled: bool
    since: SafePointMark | None = None  # when the first of them was due
    _is_short: bool = False  # it waits at most until the next save is due
    _told: set[str | tuple[str, str]] = set()

    def note_loader(self, name: str | None, unknown: Any) -> None:
        """Note whether all ranks can resume inside an epoch of the loader `name`; None: of the
        framework.

        The first loader of a name decides. An untested framework is reported at once. A drilled run
        journals what its drill may prove.
        """
        progress, ranks, attempt = self._progress, self._ranks, self._reporter.attempt
        if not ranks.alone and name in progress.unproven:
            return

        def encode_mine() -> bytes:
            return (
                b"" if unknown is None else msgspec.json.encode(promise.describe_unproven(unknown))
            )

        def choose_unproven(several: list[bytes]) -> bytes:
            known = read_proven(attempt.root) if any(several) else {}
            return next(
                (each for each in several if each and _UNPROVEN.decode(each).code not in known), b""
            )

        said = ranks.run_on_all(
            "a loader" if name else "the framework", encode_mine, choose_unproven
        )
        found = progress.unproven[name] = _UNPROVEN.decode(said) if said else None
        if found is None:
            return
        if self._is_drilled:
            attempt.record(
                EVENT,
                code=found.code,
                kind=found.kind,
                run=str(settings.named_run_dir(attempt.root)),
            )
        if found.changed:
            self.report_untested_framework(found)

    def note_save_begun(self) -> None:
        """Note that a save has begun; report a checkpoint from which a start may be refused."""
        self.since = None
        self.report_where_saved()
        self.report_mid_epoch_save()

    def reason_to_save(self, reason: str | None, now: SafePointMark, *, at_end: bool) -> str | None:
        """Return why to save here: `reason`, or that a delayed save is due now; None: delay
        it, or no save is due.
        """
        if at_end:
            return reason or (None if self.since is None else "due")
        if reason is None or not self._progress.unproven_here:
            return reason
        self.report_where_saved()
        if self._progress.unrestorable_part:  # an epoch's end is no better place
            return reason
        if self.since is None:
            self.since = now
            idle = self._ranks.run_on_rank_0(
                "a save", lambda: b"yes" if self._last_attempt_saved_nothing("killed") else b""
            )
            self._is_short = bool(idle) or not (
                self._by_steps and self._progress.has_several_epochs
            )
            return None
        return reason if self._is_short or now.step - self.since.step >= LEAST_STEPS else None

    def report_where_saved(self) -> None:
        """Report, once for each loader, where this run saves and how to change that."""
        found = self._progress.unproven_here
        name = self._progress.position.current or ""
        lives = self._progress.unrestorable_part
        if (
            not found
            or found.changed
            or (name, "lives") in self._told
            or (name in self._told and not lives)
        ):
            return
        self._told.add((name, "lives") if lives else name)
        if lives:
            self._told.add("")
            self._reporter.warn(
                f"a {found.kind}, the loader {name!r}, "
                f"keeps an iterator from epoch to epoch ({lives}), which no start "
                "can bring back: after its first epoch a "
                f"resume will be refused. {other_samples()}",
                kind="unproven_loader",
                name=name,
                code=found.code,
            )
            return
        advice = Advice(
            "a proof",
            f"Prove it once: {_drill_hint()}; or give it state_dict() and load_state_dict()",
        )
        self._reporter.warn(
            f"nobody promises that a {found.kind}, the loader {name!r}, "
            "yields the same batches when it is read again: "
            f"this run is saved at the ends of its epochs. {advice}",
            kind="unproven_loader",
            name=name,
            code=found.code,
        )

    def report_untested_framework(self, found: promise.UnprovenCode) -> None:
        """Print, once in each start,
        that this framework version was not tested, and where the run saves.
        """
        if found.code in self._told:
            return
        self._told.add(found.code)
        waits = self._progress.has_epochs
        where = (
            "this run is saved at the ends of its epochs" if waits else "a resume may end otherwise"
        )
        advice = Advice("a proof", f"Prove it once: {_drill_hint()}")
        self._reporter.warn(
            f"{found.kind} was not tried with this Holdfast ({found.changed}): {where}. {advice}",
            kind="untried_framework",
            code=found.code,
        )

    def report_mid_epoch_save(self) -> None:
        """Report, once, that a resume from a checkpoint inside an epoch may need `accept=`."""
        found = self._progress.unproven_here
        if not found or "" in self._told:
            return
        self._told.add("")
        where = f"saved in the middle of an epoch of {'' if found.changed else 'a '}{found.kind}"
        self._reporter.warn(
            f"{where}, which was not tried: a resume from there may end otherwise"
            if found.changed
            else f"{where}, whose replay nobody promises: "
            f"a resume from there may be refused. {other_samples()}",
            kind="unproven_save",
        )

    def should_stop_unsaved(self, saved: format.CheckpointName | None, count: int) -> bool:
        """Whether a stop here saves nothing, because the next start resumes exactly from an epoch's
        end.

        If attempts are shorter than an epoch, every second one in a row saves here, so that the run
        makes progress. `saved`: the newest save; `count`: of this attempt's saves.
        """
        progress = self._progress
        if (
            not progress.unproven_here
            or progress.unrestorable_part
            or not progress.has_several_epochs
        ):
            return False

        def encode_answer() -> bytes:
            if saved is not None and saved.phase != "end":
                return b""
            return b"" if not count and self._last_attempt_saved_nothing("stop") else b"yes"

        return bool(self._ranks.run_on_rank_0("a stop", encode_answer))

    def _last_attempt_saved_nothing(self, how: str) -> bool:
        """Whether the last attempt ended this way without a save. Rank 0 knows."""
        before = next(reversed(self._reporter.attempt.earlier), None)
        ended = (
            before is not None and (before.last.get("event") if before.closed else "killed") == how
        )
        return before is not None and ended and not any(before.newest("saved"))


def _drill_hint() -> str:
    return f"holdfast drill -- python {Path(sys.argv[0]).name}"


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
