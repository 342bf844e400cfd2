"""Suspects: the script's variables that a resume did not bring back, by comparison with two undisturbed runs. Pure.

A variable is suspect when it holds the same in both undisturbed runs at the place that an attempt came back to, the
loop reads it before it assigns it, and the attempt began with something else. Were it brought back before the state
left the reference's path, it would be cleared: what a later pass sets right is no cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..run.witness import UNREAD, About
from .safepoint import SafePoint
from .sights import Album, Sight

VARS = "run.vars."


class Suspect(NamedTuple):
    """A variable that a resume did not bring back."""

    path: str
    about: About  # in the reference run
    was: str  # what it held there: a digest, or "=" and the value
    now: str | None  # what the attempt began with; None: it had no value yet
    held: str = ""  # the name under which the object is tracked that the attempt has in it

    @property
    def name(self) -> str:
        """As the script spells it."""
        return spelled(self.path)

    @property
    def owner(self) -> str:
        """The object whose attribute it is, as the script spells it; empty when it is none."""
        return self.name.rpartition(".")[0] if self.about.owner else ""

    @property
    def to_come(self) -> bool:
        """Whether it had not changed yet where the attempt began: it is no cause of what differs first."""
        return self.now == self.was

    @property
    def root(self) -> str:
        """The variable that leads to it."""
        return self.name.partition(".")[0].partition("[")[0]


def spelled(path: str) -> str:
    """A path as the script spells it: without the function whose local it is."""
    head, mark, rest = path.partition(":")
    return rest if mark and head.isidentifier() else path


def suspects(reference: Album, second: Album, other: Album, attempt: int, parted: SafePoint) -> list[Suspect]:
    """What `attempt` did not bring back, of what could have led it off the path at `parted`, as the script has them.

    With them, variables that the resume did not bring back either, but that had not changed yet: each of them began
    every attempt with what it held at the very beginning.
    """
    begin = other.begin(attempt)
    there, beside = (None, None) if begin is None else (reference.at(begin.place), second.at(begin.place))
    if begin is None or there is None or beside is None:
        return []
    before, later = _last_before(other, attempt, parted), _to_come(reference, other)
    found = []
    for path, was in there.values.items():
        now, about, here = begin.values.get(path), there.about[path], begin.about.get(path)
        own = about.live and not about.tracked and not path.startswith(VARS)  # run.vars are brought back anyway
        if not own or UNREAD in (was, now) or beside.values.get(path) != was:
            continue
        if now == was and later.get(path) == was:
            found.append(Suspect(path, about, was, now))
        elif now != was and _persists(path, before, reference):
            held = here.tracked if here is not None and now is not None else ""
            found.append(Suspect(path, about, was, now, held))
    return [] if all(each.to_come for each in found) else found


def _to_come(reference: Album, other: Album) -> dict[str, str]:
    """Variables that change in the reference run, and with which value it and every attempt began.

    The mode of a module is left out: `train()` and `eval()` set it each time.
    """
    first, begins = reference.begin(1), [sight for sight in other.all if sight.begin]
    if first is None:
        return {}
    found: dict[str, str] = {}
    for path, was in first.values.items():
        varies = any(sight.values.get(path, was) != was for sight in reference.all)
        is_mode = path.endswith(".training") and first.about[path].owner_saves
        if varies and not is_mode and all(sight.values.get(path) == was for sight in begins):
            found[path] = was
    return found


def _last_before(other: Album, attempt: int, parted: SafePoint) -> Sight | None:
    """The last safe point of the attempt before it left the path; None when that was its first."""
    passed = [sight for sight in other.of(attempt) if sight.place.order < parted.order]
    return passed[-1] if passed else None


def _persists(path: str, before: Sight | None, reference: Album) -> bool:
    there = reference.at(before.place) if before is not None else None
    if before is None or there is None or path not in before.values:
        return True
    return there.values.get(path) != before.values[path]


def shifted(reference: Album, other: Album, attempt: int, parted: SafePoint) -> list[str]:
    """Numbers that count the passes of an epoch, and that counted from their first value again after the resume.

    The index of an `enumerate` is one: each pass assigns it, and it is no variable that could be brought back.
    """
    begin, here, there = other.begin(attempt), other.point(attempt, parted), reference.at(parted)
    came_to = None if begin is None else reference.at(begin.place)
    if came_to is None or here is None or there is None:
        return []
    passes = there.place.step - came_to.place.step
    fresh = reference.at(SafePoint(passes))  # so many passes after the run's own beginning
    return (
        []
        if fresh is None
        else [path for path in there.values if _counts_anew(path, passes, came_to, there, here, fresh)]
    )


def _counts_anew(path: str, passes: int, *sights: Sight) -> bool:
    was, expected, now, fresh = (_whole(sight.values.get(path)) for sight in sights)
    if was is None or expected is None or now is None:
        return False
    return expected - was == passes > 0 and now == fresh != expected and not sights[1].about[path].live


def _whole(value: str | None) -> int | None:
    text = (value or "").removeprefix("=")
    return int(text) if text.removeprefix("-").isdecimal() else None


def other_batch(reference: Album, other: Album, attempt: int, parted: SafePoint) -> bool | None:
    """Whether the step that ended at `parted` consumed another batch than in the reference run; None: nobody knows."""
    here, there = other.point(attempt, parted), reference.at(parted)
    if here is None or there is None or not here.batch or not there.batch or UNREAD in (here.batch, there.batch):
        return None
    return here.batch != there.batch


def reordered(first: Album, second: Album) -> list[str]:
    """Containers that hold the same in both undisturbed runs, in another order: as a set of strings is iterated."""
    return [path for path, a, b in _unlike(first, second) if a.bag and a.bag == b.bag]


def clocks(first: Album, second: Album) -> list[str]:
    """Variables that hold times."""
    return [path for path, a, b in _unlike(first, second) if a.clock or b.clock]


def _unlike(first: Album, second: Album) -> Iterator[tuple[str, About, About]]:
    """Variables that differ between the two undisturbed runs, at the first place where each does."""
    told: set[str] = set()
    for sight in first.all:
        beside = second.begin(1) if sight.begin else second.at(sight.place)
        for path, value in sight.values.items() if beside is not None else ():
            if beside is not None and path not in told and path in beside.about and beside.values.get(path) != value:
                told.add(path)
                yield path, sight.about[path], beside.about[path]
