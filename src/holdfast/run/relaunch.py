"""Relaunch: torchrun starts its workers again at once when they have stopped; a run that has stopped does not go on then.

To torchrun every exit code but 0 is a failure, and uses up one of --max-restarts. The machine is being taken away all
the same. After a failure, a rank that was killed for one, a run goes on as always.

Source: torch 2.13, torch/distributed/elastic/agent/server/api.py (_invoke_run), local_elastic_agent.py (_start_workers).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from .. import journal, owner
from ..errors import Stopped
from ..journal import Log
from ..ranks import Ranks
from ..terminal import say
from .ranks import parting
from .session import Session

_ID, _COUNT = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"


class Launch(msgspec.Struct, frozen=True):
    """Which start of which launch of torchrun's this process belongs to."""

    id: str  # "none" when nobody has named it: the agent tells launches apart
    restart: int
    agent: dict[str, Any]  # the process that starts the workers of this machine

    def follows(self, other: Launch) -> bool:
        """Whether this is a later start of the same launch."""
        if self.id != other.id or self.restart <= other.restart:
            return False
        here = all(self.agent.get(fact) == other.agent.get(fact) for fact in ("boot", "pid_space"))
        if here or self.id == "none":  # rank 0 may have moved to another machine, where only the name tells
            return self.agent == other.agent
        return True


def launch() -> Launch | None:
    """The one that this process belongs to; None outside of torchrun."""
    count = os.environ.get(_COUNT, "")
    if _ID not in os.environ or not count.isdecimal():
        return None
    return Launch(os.environ[_ID], int(count), owner.process(_agent()))


def stopped_before(logs: Sequence[Log], mine: Launch) -> journal.Event | None:
    """The last word of the run, when that is a stop in an earlier start of this very launch."""
    last = logs[-1] if logs else None
    if last is None or last.last.get("event") != "stop":
        return None
    for event in last.events:
        if event["event"] == "launched":
            with suppress(msgspec.ValidationError):
                if mine.follows(msgspec.convert(event.get("launch"), Launch)):
                    return last.last
    return None


def leave_again(session: Session, ranks: Ranks) -> None:
    """Before anything is restored: note the launch, and leave if this start of it comes after a stop.

    Raises:
        Stopped: the run has stopped, and was started again by a launcher that knows no stop.
    """
    mine = launch()
    if mine is None:
        return
    session.attempt.record("launched", launch=msgspec.to_builtins(mine))
    if mine.restart == 0:
        return
    found = None
    with ranks.together("stopped before"):
        if ranks.rank == 0:
            earlier = [log for log in journal.logs(session.store.root) if log.attempt < session.attempt.number]
            found = stopped_before(earlier, mine)
    word = ranks.announce("stopped before", msgspec.json.encode(found))
    event: dict[str, Any] | None = msgspec.json.decode(word)
    if event is None:
        return
    reason = str(event.get("reason"))
    facts = {name: event[name] for name in ("step", "phase") if name in event}
    with parting(ranks):
        session.attempt.close("stop", reason=reason, **facts)
    say(
        f"{session.path}: stopped by {reason} at step {event.get('step')}, and torchrun has started it again at once "
        f"(restart {mine.restart} of this launch): it does not go on here; run me again"
    )
    session.over = Stopped(f"{reason}; started again by torchrun, and left again")
    raise session.over


def _agent() -> int:
    """The nearest ancestor that is not one of torchrun's workers: a worker may have been started through a shell."""
    pid = os.getppid()
    while pid > 1:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            break
        above = owner.parent(pid)
        if f"{_ID}=".encode() not in environment or above is None:
            break
        pid = above
    return pid
