"""Hang: decides from looks at a program's signs of life whether it hangs. Pure.

A phase has a limit: ten times the slowest one so far, and never less than its floor. Only time in
which the supervisor itself looked counts: a suspended job, Ctrl-Z or a sleeping laptop stops both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

FLOOR_S = 600.0  # no limit is shorter, unless the user gives one
TIMES = 10.0  # the slowest so far
COMPILED = 3.0  # the first step: what was compiled then may be compiled again, for another shape
RARE = 3.0  # times the floor, for phases that come seldom
# until so many steps are known: times the floor, and wider than TIMES
FEW, FEW_TIMES, WIDER = 30, 6.0, 3.0
# times the floor, for what nothing is known of: the restore, the first step with its compilation
UNKNOWN = 12.0
LOOK_S, LEAST_LOOK_S = 5.0, 0.1
SLACK_S = 1.0  # so late a look may be and still count in full


class Observation(NamedTuple):
    """The state of one observed thing: a rank of the run, the output, or a file."""

    place: Hashable
    beats: int  # grows with each sign of life
    phase: str
    # phases since the last look, with seconds; None: not known
    ended: Sequence[tuple[str, float]] | None = None
    excused: bool = False  # its time does not count: a debugger holds it


class PhaseRule(NamedTuple):
    """The limits by which a phase counts as hung."""

    floor: float = RARE  # times the floor of all
    after: str = ""  # COMPILED times the slowest of this phase is allowed
    least: int = 0  # until it was seen so often in this start, its limit is UNKNOWN times the floor
    silent: bool = False  # until then it has no limit, unless the user has given one
    judged: bool = True


class Hang(NamedTuple):
    """A place without a sign of life for longer than its limit."""

    place: Hashable
    phase: str
    stuck_s: float
    limit_s: float


@dataclass
class _SilentTime:
    """How long a place has shown no sign of life."""

    beats: int
    seconds: float = 0.0
    told: bool = False
    broken: bool = False  # it includes time that does not count: its duration is no measure


@dataclass
class HangJudge:
    """Decides which places hang. What it learned about phases stays over restarts of the
    command.
    """

    phases: dict[str, PhaseRule]
    after_s: float | None = None  # the user's limit
    slowest_s: dict[str, float] = field(default_factory=dict)  # by phase
    known: Counter[str] = field(default_factory=Counter)  # so many of each phase were measured
    _stays: dict[Hashable, _SilentTime] = field(default_factory=dict)
    _here: Counter[str] = field(default_factory=Counter)  # phases of this start that have ended
    _looked_s: float | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between two observations."""
        return min(LOOK_S, max(LEAST_LOOK_S, (self.after_s or FLOOR_S) / 20))

    def reset_places(self) -> None:
        """Forget the places, because the command is started anew."""
        self._stays.clear()
        self._here.clear()
        self._looked_s = None

    def limit_s(self, phase: str) -> float | None:
        """Return how long a phase may last; None: without limit."""
        kind, slow_s = self.phases[phase], TIMES * self.slowest_s.get(phase, 0.0)
        begins = self._here[phase] < kind.least
        if not kind.judged or (begins and kind.silent and self.after_s is None):
            return None
        if begins:
            return max(UNKNOWN * (self.after_s or FLOOR_S), slow_s)
        if self.after_s is not None and kind.floor == 1:
            return self.after_s
        few = kind.floor == 1 and self.known[phase] < FEW
        floor_s = (FEW_TIMES if few else kind.floor) * (self.after_s or FLOOR_S)
        return max(
            floor_s, slow_s * (WIDER if few else 1), COMPILED * self.slowest_s.get(kind.after, 0.0)
        )

    def find_hangs(self, now_s: float, looks: Sequence[Observation]) -> list[Hang]:
        """Return the places that hang. Each is returned once until it shows a sign of life
        again.
        """
        since_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        counted_s = min(since_s, self.interval_s + SLACK_S)
        whole = counted_s == since_s
        for gone in self._stays.keys() - {look.place for look in looks}:
            del self._stays[gone]
        return [
            hang
            for look in looks
            if (hang := self._judge_place(look, counted_s, whole=whole)) is not None
        ]

    def has_recovered(self, place: Hashable) -> bool:
        """Whether a place that was reported to hang has shown a sign of life since, or is gone."""
        return place not in self._stays or not self._stays[place].told

    def _judge_place(self, look: Observation, counted_s: float, *, whole: bool) -> Hang | None:
        stay = self._stays.get(look.place)
        if stay is None or stay.beats != look.beats:
            self._learn_durations(look, stay, counted_s, whole=whole)
            self._stays[look.place] = _SilentTime(look.beats, broken=look.excused)
            return None
        if look.excused or not whole:
            stay.broken = True
        stay.seconds += 0.0 if look.excused else counted_s
        limit_s = self.limit_s(look.phase)
        if stay.told or limit_s is None or stay.seconds <= limit_s:
            return None
        stay.told = True
        return Hang(look.place, look.phase, stay.seconds, limit_s)

    def _learn_durations(
        self, look: Observation, stay: _SilentTime | None, counted_s: float, *, whole: bool
    ) -> None:
        """Learn the durations of the phases that have ended."""
        known = [] if stay is None else [(look.phase, stay.seconds + counted_s)]
        ended = known if look.ended is None else [*look.ended]
        if stay is not None and stay.broken:
            ended = ended[1:]  # a look lay in the first only
        for phase, seconds in ended:
            self._here[phase] += 1
            if whole or seconds <= counted_s:
                self.known[phase] += 1
                self.slowest_s[phase] = max(seconds, self.slowest_s.get(phase, 0.0))
