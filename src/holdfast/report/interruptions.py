"""What each interruption cost, and what would have made it cheaper. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..inspect.starts import ERROR, HANG, NODE_LOST, ProgramStart
from ..legible import duration
from ..young_daly import daly_interval_s
from .accounting import Account, spans_of
from .times import StartTimes

WORTH_S = 1.0  # what costs less needs no advice
WORTH_PART = 0.05  # of the wall time
MUCH_LONGER = 1.5  # than the best interval
ANNOUNCED = {"time limit", "preempted", "requeued", "cancelled"}  # a signal comes before


class Interruption(NamedTuple):
    """One end of a start before the work was done. Times are seconds."""

    attempt: int | None
    at_s: float  # Unix seconds
    cause: str
    why: str  # an error's text
    host: str
    job: str | None
    step: int  # reached
    resumed_step: int | None  # where the next start went on; None: there is none yet
    lost_s: float  # of training, to be done again
    down_s: float | None  # from its end to the next start's first step
    advice: str  # what would have saved most of it; empty: nothing that Holdfast knows


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
    seconds = [_seconds(account, start) for start in starts]
    lasted_s = sum(start.ended for start in starts) / max(1, len(starts) - 1)
    found = []
    for at, (start, after) in enumerate(itertools.zip_longest(starts, starts[1:])):
        told = causes.get(start.attempt or at + 1)
        cause = told.cause if told is not None else ""
        if start.done or (after is None and alive):
            continue
        lost_s = seconds[at].get("redone", 0.0)
        ready = after.first_step if after is not None else None
        found.append(
            Interruption(
                attempt=start.attempt,
                at_s=start.began_s + start.ended,
                cause=cause or "not recorded",
                why=told.why if told is not None else "",
                host=told.host if told is not None else "",
                job=told.job if told is not None else None,
                step=start.last[0],
                resumed_step=after.first if after is not None and after.restored else None,
                lost_s=lost_s,
                down_s=after.began_s + ready - start.began_s - start.ended
                if after is not None and ready is not None
                else None,
                advice=_advice(start, after, cause, seconds[at], lasted_s),
            )
        )
    return found


def advice(
    account: Account, starts: Sequence[StartTimes], *, supervised: bool, best_s: float
) -> list[str]:
    """Return what would have saved time over all, each with its figure. `best_s`: so long the loop
    waited for saves of a new best.
    """
    seconds, wall_s = account.seconds, account.wall_s
    found = []
    many = len(starts) > 1

    def worth(name: str) -> bool:
        return seconds[name] > max(WORTH_S, WORTH_PART * wall_s)

    if many and worth("start"):
        each_s = seconds["start"] / len(starts)
        found.append(
            f"{duration(seconds['start'])} went into {len(starts)} beginnings of "
            f"{duration(each_s)}: `holdfast run --standby` does the imports of the next start ahead"
        )
    if many and worth("idle") and not supervised:
        found.append(
            f"for {duration(seconds['idle'])} nobody had started it again: "
            "`holdfast run` or `holdfast submit` does that by itself"
        )
    if worth("save"):
        count = sum(len(start.saves) for start in starts)
        rare = "evaluate the metric of keep=Best(...) less often: each new best is saved"
        auto = "every=Auto() weighs that against what an interruption costs"
        found.append(
            f"the loop waited {duration(seconds['save'])} for {count} saves: "
            f"{rare if best_s > seconds['save'] / 2 else auto}"
        )
    return found


def _seconds(account: Account, start: StartTimes) -> dict[str, float]:
    found: dict[str, float] = {}
    end_s = start.began_s + start.ended
    for span in spans_of(account, start):
        inside_s = min(span.ended_s, end_s) - max(span.began_s, start.began_s)
        found[span.category] = found.get(span.category, 0.0) + inside_s
    return found


def _advice(
    start: StartTimes,
    after: StartTimes | None,
    cause: str,
    seconds: Mapping[str, float],
    lasted_s: float,
) -> str:
    if start.attempt is not None and start.restored is None:
        return "" if cause == ERROR else "it ended before its first step"
    if cause == HANG and start.hung_from is not None:
        stood_s = start.ended - start.hung_from
        return f"it stood still for {duration(stood_s)}: `--hang-after SECONDS` ends it sooner"
    lost_s = seconds.get("redone", 0.0)
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
    return _interval_advice(start, lost_s, lasted_s)


def _saved_later(start: StartTimes) -> bool:
    """Return whether it had saved after the point from which the next start went on."""
    return start.kept_until is not None and any(
        began > start.kept_until for began, _ in start.saves
    )


def _interval_advice(start: StartTimes, lost_s: float, lasted_s: float) -> str:
    begins = [began for began, _ in start.saves]
    if not begins:
        return f"it never saved in {duration(start.ended)}: every=Auto(), or a shorter interval"
    gaps = [later - earlier for earlier, later in itertools.pairwise(begins)] or [lost_s]
    took_s = statistics.median(gaps)
    cost_s = statistics.median(waited for _, waited in start.saves)
    best_s = max(daly_interval_s(max(cost_s, 1e-3), max(lasted_s, 1.0)), 1.0)
    if took_s <= MUCH_LONGER * best_s:
        return ""
    return (
        f"saved every {duration(took_s)}; every {duration(best_s)} would lose "
        f"{duration(best_s / 2)} on average and cost {cost_s / best_s:.1%} (every=Auto() does that)"
    )
