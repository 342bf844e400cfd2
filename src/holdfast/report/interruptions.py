"""What each interruption cost, and what would have made it cheaper. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .. import errors
from ..inspect.starts import DONE, ERROR, HANG, NODE_LOST, ProgramStart
from ..legible import counted, duration
from ..young_daly import daly_interval_s
from .accounting import Account, seconds_between
from .times import StartTimes

WORTH_S = 1.0  # what costs less needs no advice
WORTH_PART = 0.05  # of the wall time
MUCH_LONGER = 1.5  # than the best interval
MOST_ERRORS = 2
AUTO = "every=Auto()"
# what an interruption costs, in words: in the attempt that it ends, and until the next one trains
COSTS = {
    "redone": "of training done again",
    "hang": "of hangs",
    "stop": "of last saves and ends",
    "idle": "idle",
    "queue": "in the queue",
    "start": "of starts",
    "restore": "of restores",
    "unknown": "unknown",
}
NOTICES = {  # causes of which no journal has the scheduler's reason
    "stopped by SIGUSR1": " SIGUSR1 is a scheduler's warning before a time limit or a preemption."
}
NOT_TOLD = ProgramStart(None, 0, "", 0.0, 0.0, None, None, "")
_WITHIN = ("redone", "hang", "stop")
ANNOUNCED = {"time limit", "preempted", "requeued", "cancelled"}  # a signal comes before


class Interruption(NamedTuple):
    """One end of an attempt before the work was done. Times are seconds."""

    attempt: int | None
    at_s: float  # Unix seconds
    cause: str
    why: str  # an error's text
    host: str
    job: str | None
    step: int  # reached
    resumed_step: int | None  # from where the next attempt resumed; None: there is none yet
    lost_s: float  # of training, to be done again
    costs: Mapping[str, float]  # all that it cost, by category, until the next attempt trains
    down_s: float | None  # from its end to the next start's first step
    advice: str  # what would have saved most of it; empty: nothing that Holdfast knows

    @property
    def story(self) -> str:
        """The cause, and the error's text."""
        return f"{self.cause}{f': {self.why}' if self.why else ''}"

    @property
    def saved_by(self) -> str:
        """The advice, or why there is none."""
        why = " that Holdfast knows"
        if self.lost_s < WORTH_S:
            why = f": only {duration(self.lost_s)} of training was lost"
        return self.advice or f"nothing{why}"


class Spacing(NamedTuple):
    """How far apart the saves of a run were, and how far apart they cost least, in seconds."""

    taken_s: float
    best_s: float
    cost_s: float  # of one save


def interruptions(
    account: Account,
    starts: Sequence[StartTimes],
    causes: Mapping[int, ProgramStart],
    *,
    alive: bool,
) -> list[Interruption]:
    """Return the interruptions of a run, oldest first.

    `causes`: why each attempt ended, by its number. `alive`: the last start is at work.
    """
    interval = save_interval(starts)
    found = []
    for at, (start, after) in enumerate(itertools.zip_longest(starts, starts[1:])):
        told = causes.get(start.attempt or at + 1, NOT_TOLD)
        if start.done or told.cause == DONE or (after is None and alive):
            continue
        end_s = start.began_s + start.ended
        within = seconds_between(account, start.began_s, end_s)
        until_s = end_s if after is None else after.began_s + after.ended
        later = seconds_between(account, end_s, until_s)
        found.append(
            Interruption(
                attempt=start.attempt,
                at_s=end_s,
                cause=told.cause or "not recorded",
                why=told.why,
                host=told.host,
                job=told.job,
                step=start.last[0],
                resumed_step=after.first if after is not None and after.restored else None,
                lost_s=within["redone"],
                costs={name: (within if name in _WITHIN else later)[name] for name in COSTS},
                down_s=None
                if after is None or after.first_step is None
                else after.began_s + after.first_step - end_s,
                advice=_advice(start, after, told.cause, within["redone"], interval),
            )
        )
    return found


def advice(
    account: Account,
    starts: Sequence[StartTimes],
    ended: Sequence[Interruption],
    *,
    supervised: bool,
    best_s: float,
) -> list[str]:
    """Return what to change: first the errors, then what would have saved time over all, each with
    its figure. `best_s`: so long the loop waited for saves of a new best.
    """
    seconds, wall_s = account.seconds, account.wall_s
    # of equal errors the newest
    failed = {each.why: each for each in ended if each.cause == ERROR and each.why}
    found = [
        f"attempt {each.attempt} ended with {why}"
        f"{'' if hasattr(errors, why.partition(':')[0]) else ', raised by the script'}"
        for why, each in [*failed.items()][-MOST_ERRORS:]
    ]
    many = len(starts) > 1

    def worth(name: str) -> bool:
        return seconds[name] > max(WORTH_S, WORTH_PART * wall_s)

    if many and worth("start"):
        each_s = seconds["start"] / len(starts)
        found.append(
            f"{duration(seconds['start'])} went into the starts of {len(starts)} attempts, "
            f"{duration(each_s)} each on average: `holdfast run --standby` does the imports of the "
            "next one ahead"
        )
    if many and worth("idle") and not supervised:
        found.append(
            f"for {duration(seconds['idle'])} nobody had started it again: "
            "`holdfast run` or `holdfast submit` does that by itself"
        )
    if worth("save"):
        count = sum(len(start.saves) for start in starts)
        rare = "evaluate the metric of keep=Best(...) less often: each new best is saved"
        auto = f"{AUTO} weighs that against what an interruption costs"
        found.append(
            f"the loop waited {duration(seconds['save'])} for {count} saves: "
            f"{rare if best_s > seconds['save'] / 2 else auto}"
        )
    late, interval = [each for each in ended if each.advice.startswith(AUTO)], save_interval(starts)
    if late and interval is not None:
        lost_s, (taken_s, shorter_s, cost_s) = sum(each.lost_s for each in late), interval
        more_s = cost_s * seconds["training"] * (1 / shorter_s - 1 / taken_s)
        gain_s = lost_s - len(late) * shorter_s / 2 - more_s
        if gain_s > WORTH_S:
            found.append(
                f"saves were about {duration(taken_s)} apart, and "
                f"{counted(len(late), 'interruption')} lost "
                f"{duration(lost_s)} of training: write `Run(..., {AUTO})` in the script. "
                f"Saves about {duration(shorter_s)} apart would have gained {duration(gain_s)}"
            )
    return found


def save_interval(starts: Sequence[StartTimes]) -> Spacing | None:
    """Return the interval of a run's saves, by medians; None: no attempt saved twice."""
    gaps = [
        later - earlier
        for start in starts
        for (earlier, _), (later, _) in itertools.pairwise(start.saves)
    ]
    if not gaps:
        return None
    lasted_s = sum(start.ended for start in starts) / max(1, len(starts) - 1)
    cost_s = statistics.median(waited for start in starts for _, waited in start.saves)
    best_s = max(daly_interval_s(max(cost_s, 1e-3), max(lasted_s, 1.0)), 1.0)
    return Spacing(statistics.median(gaps), best_s, cost_s)


def _advice(
    start: StartTimes,
    after: StartTimes | None,
    cause: str,
    lost_s: float,
    interval: Spacing | None,
) -> str:
    if start.attempt is not None and start.restored is None:
        return "" if cause == ERROR else "it ended before its first step"
    if cause == HANG and start.hung_from is not None:
        stood_s = start.ended - start.hung_from
        return f"it stood still for {duration(stood_s)}: `--hang-after SECONDS` ends it sooner"
    if lost_s < WORTH_S:
        return ""
    if cause == NODE_LOST and after is not None and _saved_later(start):
        return "newer checkpoints were lost with the node: mirror= keeps a copy elsewhere"
    if cause in ANNOUNCED and start.stopping is None:
        slowest_s = max((waited for _, waited in start.saves), default=0.0)
        return (
            f"it was ended before it could save: a longer `--lead` than the "
            f"{duration(slowest_s)} of a save and a step"
        )
    if not start.saves:
        return f"it never saved in {duration(start.ended)}: {AUTO}, or a shorter interval"
    if interval is None or interval.taken_s <= MUCH_LONGER * interval.best_s:
        return ""
    return f"{AUTO}: saves about {duration(interval.best_s)} apart"


def _saved_later(start: StartTimes) -> bool:
    """Return whether it had saved after the point from which the next start went on."""
    return start.kept_until is not None and any(
        began > start.kept_until for began, _ in start.saves
    )
