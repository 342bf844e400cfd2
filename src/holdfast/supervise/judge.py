"""Judge: what follows when the command has ended. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from ..apps.command import RUN_ME_AGAIN
from ..apps.program import Verdict

QUICK_S = 10.0  # an attempt that nothing is known of, and that was over sooner, has got no further
FIRST_S, MOST_S = 1.0, 300.0  # of waiting before a restart
AGAIN_S = 0.05  # and when it had only asked for it
LEAVING_S = 5.0  # a process that ends by a signal so soon after its run had ended was only leaving
HELD, LATE = "held", "the job's end being near"
FINAL = ("deadline", "drill limit")  # reasons to stop that hold for the next attempt too


class CommandAttempt(NamedTuple):
    """How one start of the command went, as far as the next step depends on it."""

    verdict: Verdict
    code: int  # as subprocess has it
    took_s: float
    told: str | None = None  # the supervisor had been told to stop
    failed: bool = False  # it failed by its own word: its run's journal says so, or its app can tell
    reason: str = ""  # why the run stopped, as its journal says
    progressed: bool | None = None  # None: nobody can tell
    late: bool = False  # the job's time is nearly up
    held: bool = False
    lacks: str = ""  # it ended with 0, and this was not there


class Next(NamedTuple):
    """What to do."""

    do: Literal["done", "leave", "again", "retry", "fail"]
    why: str = ""
    wait_s: float = 0.0


def judge(attempts: Sequence[CommandAttempt], retries: int = 0, no_progress: int = 10) -> Next:
    """What follows after the last of `attempts`, all that this supervisor has made.

    So many crashes are retried between two gains, and so many attempts in a row may get no further.

    leave: the work is to go on, but not here and now. again: it asked for it. retry: it crashed, and may.
    """
    last = attempts[-1]
    if last.verdict == "done":
        return Next("done")
    if last.told is not None and last.failed and last.code >= 0:
        return Next("fail", "while it was told to stop")
    if last.told is not None:
        return Next("leave", f"told to stop by {last.told}")
    if last.verdict == "damaged":
        return Next("again", "it could not go on from its checkpoint")
    without_gain = _without_gain(attempts)
    fruitless = sum(not _is_blameless(each) for each in without_gain)
    if fruitless >= no_progress:
        return Next("fail", f"{fruitless} attempts in a row got no further")
    if last.verdict == "stopped":
        if last.reason in FINAL or last.late:
            return Next("leave", last.reason if last.reason in FINAL else LATE)
        if last.held:
            return Next("leave", HELD)
        # whoever's fault it was, nothing is restarted in a tight circle
        return Next("again", _why_again(last), _growing(AGAIN_S, len(without_gain) - 1))
    crashes = _crashes(attempts)
    if crashes > retries:
        return Next("fail", f"no retry left of {retries}" if retries else "")
    if last.held:
        return Next("fail", "held, so it is not tried again")
    return Next("retry", f"retry {crashes} of {retries}", _growing(FIRST_S, crashes - 1))


def was_leaving(code: int, told: str | None, told_unix_s: float, event: str, event_unix_s: float) -> bool:
    """Whether Ctrl-C only hit Python while it was leaving: `event`, the run's last word, is that it has ended."""
    interrupted = told == "SIGINT" and code in {-signal.SIGINT, 128 + signal.SIGINT}
    return interrupted and event == "end" and told_unix_s <= event_unix_s + LEAVING_S


def exit_code(last: CommandAttempt, *, resumable: bool) -> int:
    """The supervisor's own, when the work is to go on later: 75 when it can, else what a shell says of the command."""
    if last.verdict == "stopped" or resumable:
        return RUN_ME_AGAIN
    return last.code if last.code >= 0 else 128 - last.code


def _why_again(last: CommandAttempt) -> str:
    if last.lacks:
        return f"`finished` does not hold: {last.lacks}"
    return "it asked to be run again" if last.code == RUN_ME_AGAIN or last.reason else "it stopped early"


def describe(code: int) -> str:
    """An exit code in words: "exit 3", "killed by SIGSEGV"."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _growing(first_s: float, times: int) -> float:
    return min(first_s * 2.0 ** min(times, 30), MOST_S) if times >= 0 else 0.0


def _got_further(attempt: CommandAttempt) -> bool:
    return attempt.progressed if attempt.progressed is not None else attempt.took_s >= QUICK_S


def _without_gain(attempts: Sequence[CommandAttempt]) -> list[CommandAttempt]:
    """The last attempts in a row that by themselves got no further."""
    return list(takewhile(lambda each: not _got_further(each), reversed(attempts)))


def _is_blameless(attempt: CommandAttempt) -> bool:
    """Signals and lost nodes are nobody's fault."""
    return attempt.code < 0 or bool(attempt.told) or attempt.reason.startswith("SIG") or attempt.verdict == "damaged"


def _crashes(attempts: Sequence[CommandAttempt]) -> int:
    """Crashes since the command last got further, this one included."""
    count = 0
    for attempt in reversed(attempts):
        count += attempt.verdict == "failed"
        if attempt.progressed:
            break
    return count
