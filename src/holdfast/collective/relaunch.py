"""Relaunch: torchrun restarts its workers at once after a stop. The run then exits again before it
restores anything.

For torchrun every exit code but 0 is a failure that uses one of --max-restarts, although the
machine is being taken away. After a real failure, for example a killed rank, the run resumes as
usual.

Source: torch 2.13, torch/distributed/elastic/agent/server: _invoke_run in api.py, _start_workers in
local_elastic_agent.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .. import journal, owner
from ..journal import Log
from ..ranks import Ranks
from ..store.attempt import Attempt
from ..store.format import CheckpointName

_ID, _COUNT = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"


class MachineStart(msgspec.Struct, frozen=True):
    """The part of a start that one machine contributes."""

    agent: dict[str, Any]  # the process that starts this machine's workers
    # how often the agent restarted after a failure; agents of one launch may have different counts
    restart: int


class Launch(msgspec.Struct, frozen=True):
    """Identifies this process's launch of torchrun, and the start within it."""

    id: str  # "none" unless the user set it: launches are then told apart by the agent
    restart: int
    agent: dict[str, Any]  # of rank 0
    others: list[MachineStart] = []

    @property
    def starts(self) -> list[MachineStart]:
        return [MachineStart(self.agent, self.restart), *self.others]

    def follows(self, other: Launch) -> bool:
        """Whether this is a later start of the same launch as `other`."""
        if self.id != other.id:
            return False
        common = [
            (mine, its) for mine in self.starts for its in other.starts if mine.agent == its.agent
        ]
        # an agent counts when its workers fail, but not when another agent requested the restart
        if common:
            joined = any(
                mine.agent not in [its.agent for its in other.starts] for mine in self.starts
            )
            return not joined and any(mine.restart > its.restart for mine, its in common)
        if self.id == "none" or _machines(self) & _machines(other):
            return False
        return max(start.restart for start in self.starts) > max(
            start.restart for start in other.starts
        )


_LAUNCHES = msgspec.json.Decoder(Launch)  # made here for the reason that `format` has


def _machines(launch: Launch) -> set[tuple[Any, Any]]:
    return {(start.agent.get("boot"), start.agent.get("pid_space")) for start in launch.starts}


def current_launch() -> Launch | None:
    """Return the launch of this process; None outside torchrun."""
    count = os.environ.get(_COUNT, "")
    if _ID not in os.environ or not count.isdecimal():
        return None
    return Launch(os.environ[_ID], int(count), owner.describe_process(_agent_pid()))


def find_stop_before(logs: Sequence[Log], mine: Launch) -> journal.Event | None:
    """Return the run's last event, if it is a stop in an earlier start of this launch."""
    last = logs[-1] if logs else None
    if last is None or last.last.get("event") != "stop":
        return None
    for event in last.events:
        if event["event"] == "launched":
            with suppress(msgspec.ValidationError):
                if mine.follows(msgspec.convert(event.get("launch"), Launch)):
                    return last.last
    return None


class StopBefore(NamedTuple):
    """A stop of the run in an earlier start of this launch."""

    reason: str
    at: CheckpointName
    restart: int  # of this launch


def note_start(ranks: Ranks, attempt: Attempt) -> StopBefore | None:
    """Journal the launch. Return the stop that this start follows,
    if a launcher did not recognise that as one.
    """
    mine = current_launch()
    if mine is None:
        return None
    said = ranks.gather("launch", msgspec.json.encode(mine))
    word = ranks.run_on_rank_0(
        "stopped before", lambda: msgspec.json.encode(_journal_start(attempt, said))
    )
    event: dict[str, Any] | None = msgspec.json.decode(word)
    return (
        None
        if event is None
        else StopBefore(
            event["reason"], CheckpointName(event["step"], event["phase"]), mine.restart
        )
    )


def _journal_start(attempt: Attempt, said: Sequence[bytes]) -> journal.Event | None:
    """On rank 0, journal this start as all ranks see it;
    return the stop before it, if there was one.
    """
    first, *rest = [_LAUNCHES.decode(each) for each in said]
    starts = {
        msgspec.json.encode(start): start
        for each in rest
        for start in each.starts
        if start not in first.starts
    }
    here = msgspec.structs.replace(first, others=[*starts.values()])
    attempt.record("launched", launch=msgspec.to_builtins(here))
    if not any(start.restart for start in here.starts):
        return None
    return find_stop_before(attempt.earlier, here)


def _agent_pid() -> int:
    """Return the nearest ancestor that is not a torchrun worker:
    a worker may have been started through a shell.
    """
    pid = os.getppid()
    while pid > 1:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            break
        above = owner.parent_pid(pid)
        if f"{_ID}=".encode() not in environment or above is None:
            break
        pid = above
    return pid
