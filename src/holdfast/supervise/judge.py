"""Judge: decides what to do after the command has ended. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from ..apps.command import RUN_ME_AGAIN
from ..apps.program import Verdict
from ..cluster.cause import BAD_NODE
from ..legible import counted
from . import causes

QUICK_S = 10.0  # an attempt of unknown progress counts as no progress if it was shorter
AGAIN_S = 0.05  # wait if the command only asked for a restart
LEAVING_S = 5.0  # a process killed by a signal this soon after its run ended was only exiting
HELD, LATE = "held", "the job's end being near"
_SHOWN = {causes.MEMORY, causes.DISK, causes.UNREADABLE, BAD_NODE}
FINAL = ("deadline", "drill limit")  # reasons to stop that apply to the next attempt too


class CommandAttempt(NamedTuple):
    """How one start of the command went, as far as the next step depends on it."""

    verdict: Verdict
    code: int  # in subprocess's notation
    took_s: float
    told: str | None = None  # why the supervisor was told to stop; None: it was not
    failed: bool = False  # the run's journal or the app's adapter reports a failure
    reason: str = ""  # why the run stopped, according to its journal
    progressed: bool | None = None  # None: unknown
    late: bool = False  # the job's time is nearly over
    held: bool = False
    lacks: str = ""  # why it is not done although the exit code was 0
    refused: str = ""  # why the run did not begin, and would not the next time
    behind: str = ""  # it failed behind a last batch: what the next start goes on from
    hung: str = ""  # where it hung, if it was ended for that
    cause: str = ""  # why it failed, in the words of `causes`
    node: str = ""  # the one that is at fault for it
    # of starts there within 30 minutes, this one included; 0: the job cannot leave it
    node_deaths: int = 0


class NextStep(NamedTuple):
    """The next step: what, why, and after which wait."""

    do: Literal["done", "leave", "again", "retry", "fail"]
    why: str = ""
    wait_s: float = 0.0


def decide_next_step(
    attempts: Sequence[CommandAttempt], retries: int = 0, no_progress: int = 10
) -> NextStep:
    """Return what follows after the last of `attempts`, which are all of this supervisor.

    `retries` crashes are retried between two gains of progress. `no_progress` attempts in a row may
    make none.

    leave: the work continues later, not here. again: the command asked for a restart. retry: it
    crashed, and may be restarted.
    """
    last = attempts[-1]
    if last.verdict == "done":
        return NextStep("done")
    if last.refused:
        return NextStep("fail", "its run belongs to another submission")
    if last.told is not None and last.failed and last.code >= 0:
        return NextStep("fail", "while it was told to stop")
    if last.told is not None:
        return NextStep("leave", f"told to stop by {last.told}")
    if last.hung:
        return _next_after_hang(attempts)
    if last.verdict == "damaged":
        return NextStep("again", "it could not go on from its checkpoint")
    without_gain = _attempts_without_progress(attempts)
    fruitless = sum(not _has_outside_cause(each) for each in without_gain)
    if fruitless >= no_progress:
        return NextStep("fail", f"{counted(fruitless, 'attempt')} in a row got no further")
    if last.verdict == "stopped":
        if last.reason in FINAL or last.late:
            return NextStep("leave", last.reason if last.reason in FINAL else LATE)
        if last.held:
            return NextStep("leave", HELD)
        # whatever the cause, never restart in a tight loop
        times = len(without_gain) - 1
        wait_s = causes.growing_wait_s(AGAIN_S, times) if times >= 0 else 0.0
        return NextStep("again", _restart_reason(last), wait_s)
    if last.node_deaths > 1:
        return NextStep("leave", BAD_NODE)
    if last.behind and not (last.held or last.late):
        return NextStep("again", f"it goes on from {last.behind}", AGAIN_S)
    crashes = _count_crashes(attempts)
    if last.node_deaths and crashes <= max(retries, 1) and not (last.held or last.late):
        return NextStep("again", "its node may be at fault", causes.wait_s(last.cause, 1))
    if causes.action_for(last.cause) == "leave":
        return NextStep("fail", f"{last.cause}: another start would end like this one")
    if crashes > retries:
        if not retries and last.code < 0:
            return NextStep("fail", "`holdfast run --retries 3` would start it again")
        return NextStep("fail", f"no retry left of {retries}" if retries else "")
    if last.held:
        return NextStep("fail", "held, so it is not tried again")
    return NextStep("retry", f"retry {crashes} of {retries}", causes.wait_s(last.cause, crashes))


def _next_after_hang(attempts: Sequence[CommandAttempt]) -> NextStep:
    """Start it once more; not if it hangs at the same step again."""
    last = attempts[-1]
    if sum(each.hung == last.hung for each in attempts) > 1:
        return NextStep("fail", f"it hung twice at {last.hung}")
    if last.held or last.late:
        return NextStep("leave", HELD if last.held else LATE)
    return NextStep("again", f"it hung at {last.hung}", AGAIN_S)


def was_interrupted_at_exit(
    code: int, told: str | None, told_unix_s: float, event: str, event_unix_s: float
) -> bool:
    """Whether Ctrl-C interrupted only Python's exit: `event`, the journal's last one, is the
    run's end.
    """
    interrupted = told == "SIGINT" and code in {-signal.SIGINT, 128 + signal.SIGINT}
    return interrupted and event == "end" and told_unix_s <= event_unix_s + LEAVING_S


def exit_code(last: CommandAttempt, *, resumable: bool) -> int:
    """The supervisor's exit code: 75 if the work can continue,
    else the shell's code for the command.
    """
    if last.verdict == "stopped" or resumable:
        return RUN_ME_AGAIN
    return last.code if last.code >= 0 else 128 - last.code


def _restart_reason(last: CommandAttempt) -> str:
    if last.lacks:
        return f"`finished` does not hold: {last.lacks}"
    return (
        "it asked to be run again"
        if last.code == RUN_ME_AGAIN or last.reason
        else "it stopped early"
    )


def describe_exit_code(code: int) -> str:
    """Return an exit code as text: "exit 3", "killed by SIGSEGV"."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def describe_attempt(attempt: CommandAttempt) -> str:
    """Return in words how an attempt ended."""
    cause = f" ({attempt.cause})" if attempt.cause in _SHOWN else ""
    lacks = f", but `finished` does not hold: {attempt.lacks}" if attempt.lacks else ""
    return describe_exit_code(attempt.code) + cause + lacks


def _made_progress(attempt: CommandAttempt) -> bool:
    return attempt.progressed if attempt.progressed is not None else attempt.took_s >= QUICK_S


def _attempts_without_progress(attempts: Sequence[CommandAttempt]) -> list[CommandAttempt]:
    """Return the attempts at the end that made no progress,
    without those that had an outside cause.
    """
    return list(takewhile(lambda each: not _made_progress(each), reversed(attempts)))


def _has_outside_cause(attempt: CommandAttempt) -> bool:
    """Whether a signal or a lost node ended the attempt, and not the command itself."""
    return (
        attempt.code < 0
        or bool(attempt.told)
        or attempt.reason.startswith("SIG")
        or attempt.verdict == "damaged"
    )


def _count_crashes(attempts: Sequence[CommandAttempt]) -> int:
    """Return the number of crashes since the command last made progress, including this one."""
    count = 0
    for attempt in reversed(attempts):
        count += attempt.verdict == "failed"
        if attempt.progressed:
            break
    return count
