"""Suspects: the script's variables that a resume did not restore, found by comparison with two
undisturbed runs. Pure.

A variable is suspect if three conditions hold. Both undisturbed runs hold the same value at the
place where an attempt resumed; the loop reads it before it assigns it; and the attempt began with
another value. It is not suspect if it had the reference's value again at the last safe point before
the divergence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ..script.witness import UNREAD, VariableFacts
from .safepoint import SafePoint
from .sights import VariableHistory, VariableRecord

VARS = "run.vars."


class Suspect(NamedTuple):
    """A variable that a resume did not restore."""

    path: str
    about: VariableFacts  # in the reference run
    was: str  # its value there: a digest, or "=" and the value
    now: str | None  # its value when the attempt began; None: it had none yet
    held: str = ""  # tracked name of the object that the attempt holds here; empty: none

    @property
    def name(self) -> str:
        """The path as the script spells it."""
        return script_name(self.path)

    @property
    def owner(self) -> str:
        """The object whose attribute it is,
        as the script spells it; empty if it is no attribute.
        """
        return self.name.rpartition(".")[0] if self.about.owner else ""

    @property
    def unchanged_at_start(self) -> bool:
        """Whether it had the reference's value when the attempt began; then it cannot explain
        the first difference.
        """
        return self.now == self.was

    @property
    def root(self) -> str:
        """The outermost variable of the path."""
        return self.name.partition(".")[0].partition("[")[0]


def script_name(path: str) -> str:
    """Return a path as the script spells it: without the function whose local it is."""
    head, mark, rest = path.partition(":")
    return rest if mark and head.isidentifier() else path


def function_of(path: str) -> str:
    """Return the name of the function whose local the path begins with;
    empty: a variable of the module.
    """
    head, mark, _ = path.partition(":")
    return head if mark and head.isidentifier() else ""


def find_suspects(
    reference: VariableHistory,
    second: VariableHistory,
    other: VariableHistory,
    attempt: int,
    diverged_at: SafePoint,
) -> list[Suspect]:
    """Return variables that `attempt` did not restore and that can explain the divergence at
    `diverged_at`.

    Adds unrestored variables that had not changed yet; the result is empty if only those are found.
    every attempt with what it held at the very beginning.
    """
    begin = other.record_at_begin(attempt)
    there, beside = (
        (None, None)
        if begin is None
        else (reference.record_at(begin.place), second.record_at(begin.place))
    )
    if begin is None or there is None or beside is None:
        return []
    before, later = (
        _last_record_before(other, attempt, diverged_at),
        _unchanged_at_start(reference, other),
    )
    found, last = [], reference.all[-1].about
    for path, was in there.values.items():
        now, about, here = begin.values.get(path), there.about[path], begin.about.get(path)
        if path in last and last[path].renewed:
            about = msgspec.structs.replace(about, renewed=True)
        # run.vars are restored anyway
        own = about.live and not about.tracked and not path.startswith(VARS)
        if not own or UNREAD in (was, now) or beside.values.get(path) != was:
            continue
        if now == was and later.get(path) == was:
            found.append(Suspect(path, about, was, now))
        elif now != was and _still_differs_before(path, before, reference):
            held = here.tracked if here is not None and now is not None else ""
            found.append(Suspect(path, about, was, now, held))
    return [] if all(each.unchanged_at_start for each in found) else found


def _unchanged_at_start(reference: VariableHistory, other: VariableHistory) -> dict[str, str]:
    """Return the variables that change in the reference run and that began it and every attempt
    with one value.

    They are mapped to that value.

    The mode of a module is left out: `train()` and `eval()` set it each time.
    """
    first, begins = reference.record_at_begin(1), [sight for sight in other.all if sight.begin]
    if first is None:
        return {}
    found: dict[str, str] = {}
    for path, was in first.values.items():
        varies = any(sight.values.get(path, was) != was for sight in reference.all)
        is_mode = path.endswith(".training") and first.about[path].owner_saves
        if varies and not is_mode and all(sight.values.get(path) == was for sight in begins):
            found[path] = was
    return found


def _last_record_before(
    other: VariableHistory, attempt: int, diverged_at: SafePoint
) -> VariableRecord | None:
    """Return the attempt's last safe point before `diverged_at`; None if it passed none."""
    passed = [sight for sight in other.records_of(attempt) if sight.place.order < diverged_at.order]
    return passed[-1] if passed else None


def _still_differs_before(
    path: str, before: VariableRecord | None, reference: VariableHistory
) -> bool:
    there = reference.record_at(before.place) if before is not None else None
    if before is None or there is None or path not in before.values:
        return True
    return there.values.get(path) != before.values[path]


def restarted_counters(
    reference: VariableHistory, other: VariableHistory, attempt: int, diverged_at: SafePoint
) -> list[str]:
    """Return pass counters that restarted after the resume, such as an `enumerate` index.

    Each pass assigns such a counter, so restoring the variable would not help.
    """
    begin, here, there = (
        other.record_at_begin(attempt),
        other.record_in_attempt(attempt, diverged_at),
        reference.record_at(diverged_at),
    )
    came_to = None if begin is None else reference.record_at(begin.place)
    if came_to is None or here is None or there is None:
        return []
    passes = there.place.step - came_to.place.step
    fresh = reference.record_at(
        SafePoint(passes)
    )  # the same number of passes after the run's start
    return (
        []
        if fresh is None
        else [
            path for path in there.values if _counts_anew(path, passes, came_to, there, here, fresh)
        ]
    )


def _counts_anew(path: str, passes: int, *sights: VariableRecord) -> bool:
    was, expected, now, fresh = (_whole(sight.values.get(path)) for sight in sights)
    if was is None or expected is None or now is None:
        return False
    return (
        expected - was == passes > 0 and now == fresh != expected and not sights[1].about[path].live
    )


def _whole(value: str | None) -> int | None:
    text = (value or "").removeprefix("=")
    return int(text) if text.removeprefix("-").isdecimal() else None


def consumed_other_batch(
    reference: VariableHistory, other: VariableHistory, attempt: int, diverged_at: SafePoint
) -> bool | None:
    """Whether the step that ended at `diverged_at` consumed another batch than in the reference
    run; None: unknown.
    """
    here, there = other.record_in_attempt(attempt, diverged_at), reference.record_at(diverged_at)
    if (
        here is None
        or there is None
        or not here.batch
        or not there.batch
        or UNREAD in (here.batch, there.batch)
    ):
        return None
    return here.batch != there.batch


def reordered_containers(first: VariableHistory, second: VariableHistory) -> list[str]:
    """Return containers with equal items in another order in the two undisturbed runs, e.g.

    made by iterating a set of strings.
    """
    return [path for path, a, b in _differing_variables(first, second) if a.bag and a.bag == b.bag]


def time_variables(first: VariableHistory, second: VariableHistory) -> list[str]:
    """Return the variables that hold times."""
    return [path for path, a, b in _differing_variables(first, second) if a.clock or b.clock]


def _differing_variables(
    first: VariableHistory, second: VariableHistory
) -> Iterator[tuple[str, VariableFacts, VariableFacts]]:
    """Yield variables that differ between the two undisturbed runs,
    at the first place where each does.
    """
    told: set[str] = set()
    for sight in first.all:
        beside = second.record_at_begin(1) if sight.begin else second.record_at(sight.place)
        for path, value in sight.values.items() if beside is not None else ():
            if (
                beside is not None
                and path not in told
                and path in beside.about
                and beside.values.get(path) != value
            ):
                told.add(path)
                yield path, sight.about[path], beside.about[path]
