"""Plan: when to kill, with what, and what to damage. Pure: a seed and a reference run decide everything."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ..data.order import key
from ..journal import Event

DAMAGE = ("flipped bit", "truncated shard")
POLITE = ("TERM", "INT", "USR1", "USR2")  # what a run answers by saving; KILL it cannot answer
RANK = "RANK"  # a SIGKILL to one of the processes that a launcher has started, and to no other
SIGNALS = ("KILL", *POLITE, RANK)

_SHORTEST_TIMEOUT_S = 120.0
_TRIES = 3  # saves that may be over before a blow falls
_PATIENCE = 5  # times the reference run's duration


class Pace(NamedTuple):
    """What an uninterrupted run teaches: how far it goes, where it saves, how long things take."""

    last: int  # its last step
    saves: tuple[int, ...]  # steps of the checkpoints before the last step
    step_s: float
    save_s: float
    total_s: float

    @property
    def timeout_s(self) -> float:
        """How long an attempt may take before it counts as hung."""
        return max(_SHORTEST_TIMEOUT_S, _PATIENCE * self.total_s)


class Kill(NamedTuple):
    """One planned interruption."""

    step: int  # not before this step
    signal: str  # "KILL", "TERM", ...
    delay_s: float  # but so long after it has begun: a random moment of a step, or of a save
    until: int = 0  # wait for a save to begin, but no longer than up to this step
    damage: str | None = None  # one of DAMAGE, planted before the next attempt
    which: float = 0.0  # of the ranks, should one be meant; in [0, 1)


def pace(events: Sequence[Event], total_s: float) -> Pace:
    """The pace of a run from its journal."""
    steps = [(int(event["step"]), float(event["time"])) for event in events if event["event"] == "digests"]
    last = max((step for step, _ in steps), default=0)
    saves = {int(event["step"]) for event in events if event["event"] == "saved"}
    gaps = [later - sooner for (_, sooner), (_, later) in pairwise(steps)]
    durations = [float(event.get("save_s", 0)) for event in events if event["event"] == "saved"]
    return Pace(
        last=last,
        saves=tuple(sorted(step for step in saves if 0 < step < last)),
        step_s=statistics.median(gaps or [0.0]),
        save_s=statistics.median(durations or [0.0]),
        total_s=total_s,
    )


def plan(pace: Pace, kills: int, signals: Sequence[str], seed: int, *, damage: bool) -> list[Kill]:
    """`kills` interruptions spread over the run, beyond its first save; none where nothing could be come back to."""
    begin = pace.saves[0] + 1 if pace.saves else 1
    if begin >= pace.last or not (pace.saves or set(signals) & set(POLITE)):
        return []
    room = max(1, pace.last - 1 - begin)  # a stop takes one step more, and the last one has to come after it
    wounds = _wounds(kills, seed) if damage else {}
    planned = []
    for number in range(kills):
        step = begin + int((number + _fraction(seed, number, "step")) * room / kills)
        saves = [save for save in pace.saves if save >= step and pace.last - save > 2 * (kills - number)]
        in_save = bool(saves) and (number // len(signals) + seed) % 2 == 1
        span = pace.save_s / 4 if in_save else pace.step_s  # the rest of a save tends what is older
        delay_s = span * _fraction(seed, number, "delay")
        until = saves[:_TRIES][-1] if in_save else 0
        which = _fraction(seed, number, "rank")
        planned.append(Kill(step, signals[number % len(signals)], delay_s, until, wounds.get(number), which))
    return planned


def further(pace: Pace, at: int, missing: int, number: int, signals: Sequence[str], seed: int) -> Kill | None:
    """One kill more, at step `at` or later, so that `missing` ones find room; None when the run is over."""
    if at + 1 >= pace.last:
        return None
    spare = max(0, pace.last - at - 2 * missing)
    step = at + int(_fraction(seed, number, "further") * spare / (missing + 1))
    return Kill(step, signals[number % len(signals)], delay_s=0.0, which=_fraction(seed, number, "rank"))


def _wounds(kills: int, seed: int) -> dict[int, str]:
    """After which kill which damage is planted: never both in one place."""
    order = sorted(range(kills), key=lambda number: _fraction(seed, number, "wound"))
    return dict(zip(order, DAMAGE, strict=False))


def _fraction(*parts: object) -> float:
    """A number in [0, 1) that depends on every part."""
    return key("drill", *parts) / 2**64
