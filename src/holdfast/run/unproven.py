"""Unproven: a loader whose replay is not known to be equal, or a framework version that was not
tested.

Such a run saves at the ends of epochs, so that no start resumes in the middle of one. A drill
proves them: a killed run resumed inside its epochs and ended with the same bits. The drill writes
their digests to a file beside the run's directory, for the next start.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from .. import disk
from ..data import promise
from ..data.advice import Advice, other_samples
from ..interval import SafePointMark
from ..ranks import Ranks
from ..store import format
from . import settings
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
