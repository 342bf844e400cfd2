"""Plan: how each kill is done, and what is damaged.
Pure: it depends only on a seed and a reference run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..errors import UsageError
from ..journal import Event
from ..settings import DrillTarget
from .evidence import SafePoint
from .places import END, LAST, ResumeTarget, SafePointSequence, seeded_fraction

DAMAGE = ("flipped bit", "truncated shard")
# a run responds to these by saving; it cannot respond to KILL
POLITE = ("TERM", "INT", "USR1", "USR2")
RANK = "RANK"  # a SIGKILL to one of the processes that a launcher has started, and to no other
SIGNALS = ("KILL", *POLITE, RANK)

_SHORTEST_TIMEOUT_S = 120.0
_PATIENCE = 5  # times the reference run's duration
_LATER = 4  # safe points from a target to the save that is struck or damaged instead of it
_SEEN_S = 0.005  # a run leaves a safe point within this time after it was seen there


class RunPace(NamedTuple):
    """Durations of an uninterrupted run: its steps and saves, its last step, and where it saves."""

    last: int  # its last step
    saves: int  # checkpoints before the last step
    step_s: float
    save_s: float
    total_s: float
    # from the start of the process to its first step, and from the last to its end
    start_s: float = 0.0

    @property
    def timeout_s(self) -> float:
        """How long an attempt may take before it counts as hung."""
        return max(_SHORTEST_TIMEOUT_S, _PATIENCE * self.total_s)


class Kill(NamedTuple):
    """One planned interruption. It comes `delay_s` after all its conditions hold."""

    target: ResumeTarget  # where the next attempt must resume
    aim: DrillTarget  # what the run does for this kill
    signal: str = ""  # "KILL", "TERM", ...
    reached: SafePoint | None = None  # the attempt has reached this place
    kept: SafePoint | None = None  # a checkpoint of this place, or a later one, is durable
    in_save: SafePoint | None = None  # a save of this place is in progress or durable
    delay_s: float = 0.0
    damage: str | None = None  # one of DAMAGE, done before the next attempt
    which: float = 0.0  # selects the rank, if the kill is for one; in [0, 1)


class DrillOptions(NamedTuple):
    """The user's options."""

    kills: int = 5
    signals: Sequence[str] = ("KILL", "TERM")
    seed: int = 0
    steps: int | None = None  # stop both runs after so many
    save_every_steps: int | None = None  # instead of the command's own interval
    exempt: Sequence[str] = ()  # patterns of metrics' names, besides timings, and of printed lines
    damage: bool = True
    keep: Path | None = None  # where to keep the runs
    # seconds for the whole drill; fewer kills are done if so many would take longer
    budget_s: float | None = None
    # the command that resumes a program without a Run; {checkpoint} in it stands for a path
    resume_with: str = ""
    checkpoints: Sequence[str] = ()  # patterns of the files or folders that it saves


def fit_budget(options: DrillOptions, total_s: float, start_s: float, runs: int) -> DrillOptions:
    """Return the options with as many kills as fit into the budget, by the first run's times:
    `runs` whole runs, and a start for each kill.

    Raises:
        UsageError: not even one kill fits.
    """
    if options.budget_s is None:
        return options
    most = int((options.budget_s - runs * total_s) / max(start_s, 0.1)) - 2
    if most < 1:
        least = runs * total_s + 3 * start_s
        raise UsageError(
            f"a drill with one kill takes about {least:.0f} s here, and the budget is "
            f"{options.budget_s:.0f} s: raise it, or give the command fewer steps"
        )
    return options._replace(kills=min(options.kills, most))


def measure_pace(events: Sequence[Event], total_s: float) -> RunPace:
    """Return the pace of a run, computed from its journal."""
    steps, saves = (
        [event for event in events if event["event"] == kind] for kind in ("digests", "saved")
    )
    last = max((int(event["step"]) for event in steps), default=0)
    return RunPace(
        last=last,
        saves=len({event["step"] for event in saves if 0 < event["step"] < last}),
        step_s=statistics.median(
            [later["time"] - sooner["time"] for sooner, later in pairwise(steps)] or [0.0]
        ),
        save_s=statistics.median([event.get("save_s", 0.0) for event in saves] or [0.0]),
        total_s=total_s,
        start_s=max(0.0, total_s - (steps[-1]["time"] - steps[0]["time"])) if steps else total_s,
    )


def plan_kills(
    pace: RunPace,
    course: SafePointSequence,
    targets: Sequence[ResumeTarget],
    options: DrillOptions,
    begin: int = 0,
) -> list[Kill]:
    """Return a kill for each target, in the order of the run;
    the first of them is number `begin` of the drill.
    """
    seed = options.seed
    signals = list(islice(cycle(options.signals), begin, begin + len(targets)))
    damages = _plan_damage(course, targets, signals, seed) if options.damage else {}
    planned = []
    for number, (target, signal) in enumerate(zip(targets, signals, strict=True), begin):
        damage = damages.get(target.place)
        in_save = damage is None and (number // len(options.signals) + seed) % 2 == 1
        later = _later_point(course, target, targets, seed)
        if later is None and damage is not None:
            later = course.points_after(target.place, 1)[0]
        if signal in POLITE:
            kill = _plan_stop(course, target, later if damage else None, in_save=in_save)
        else:
            kill = _plan_sigkill(
                course, target, later if damage or in_save else None, in_save=in_save
            )
        exact = target.kind in (LAST, END) or damage is not None
        aim = msgspec.structs.replace(kill.aim, exact=exact)
        delay_s = _delay_s(kill, pace, seeded_fraction(seed, number, "delay"))
        which = seeded_fraction(seed, number, "rank")
        planned.append(
            kill._replace(signal=signal, aim=aim, delay_s=delay_s, damage=damage, which=which)
        )
    return planned


def _plan_sigkill(
    course: SafePointSequence, target: ResumeTarget, later: SafePoint | None, *, in_save: bool
) -> Kill:
    """Return a SIGKILL that comes once the target is durable.

    It comes at a random moment after that, inside the save of `later`, or after that save, to
    damage it.
    """
    place, brink = target.place, course.places[-1]
    saves = (*_fallback_saves(course, target), place)
    if later is None:
        return Kill(target, DrillTarget(place, saves, brink=brink), kept=place)
    aim = DrillTarget(place, (*saves, later), brink=brink)
    return (
        Kill(target, aim, kept=place, in_save=later) if in_save else Kill(target, aim, kept=later)
    )


def _plan_stop(
    course: SafePointSequence, target: ResumeTarget, later: SafePoint | None, *, in_save: bool
) -> Kill:
    """Return a signal in the step before the place where the run must stop; the run waits there if
    it is early.

    If the checkpoint of the stop will be damaged, that place is `later`, and the target lies before
    it. A stop inside a save comes in the save of the previous safe point.
    """
    place = target.place
    before = course.point_before(place)
    if later is not None:
        saves = (*_fallback_saves(course, target), place)
        return Kill(
            target,
            DrillTarget(place, saves, hold=later),
            reached=course.point_before(later),
            kept=place,
        )
    if in_save and before is not None:
        return Kill(
            target, DrillTarget(place, (before,), hold=place), reached=before, in_save=before
        )
    return Kill(
        target, DrillTarget(place, _fallback_saves(course, target), hold=place), reached=before
    )


def _fallback_saves(course: SafePointSequence, target: ResumeTarget) -> tuple[SafePoint, ...]:
    """Return further places to save at: a run that fails after a last batch resumes from the
    save before.
    """
    before = (
        course.point_before(target.place) if course.kind_of_place(target.place) == LAST else None
    )
    return () if before is None else (before,)


def _later_point(
    course: SafePointSequence, target: ResumeTarget, targets: Sequence[ResumeTarget], seed: int
) -> SafePoint | None:
    """Return a safe point soon after the target and before the next one; None: there is none.

    The next attempt may resume there.
    """
    # the run may resume there if its save is finished in time
    free = course.free_points_after(target.place, _LATER, [each.place for each in targets])
    least = min(map(course.regularity, free), default=0.0)
    good = [place for place in free if course.regularity(place) <= least + 0.1]
    return good[int(seeded_fraction(seed, *target.place, "later") * len(good))] if good else None


def _delay_s(kill: Kill, pace: RunPace, part: float) -> float:
    """Return a random moment: of a save, of the step before the stop,
    or of the two steps after the target.
    """
    if kill.in_save is not None:
        return part * pace.save_s / 4  # the rest of a save only handles older checkpoints
    if kill.reached is not None:
        return _SEEN_S + part * pace.step_s
    return part * min(2 * pace.step_s, pace.total_s / 10)


def _plan_damage(
    course: SafePointSequence, targets: Sequence[ResumeTarget], signals: Sequence[str], seed: int
) -> dict[SafePoint, str]:
    """Return which damage is done after which target; never both kinds after one, and only if a
    later checkpoint can be damaged.

    Not after the loss of a rank, if there is another kill: a launcher may restart before the damage
    is done.
    """
    able = [
        (signal == RANK, seeded_fraction(seed, *target.place, "wound"), target.place)
        for target, signal in zip(targets, signals, strict=True)
        if course.points_after(target.place, 1)
    ]
    return dict(zip((place for _, _, place in sorted(able)), DAMAGE, strict=False))
