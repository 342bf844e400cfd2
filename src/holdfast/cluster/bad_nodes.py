"""Bad nodes: excludes nodes from a job if its starts died there because of the node.

`plan_exclusion` asks Slurm; all other functions are pure. The events are those of a supervisor's
journal.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .. import owner
from ..errors import ClusterError
from ..job import Job
from ..journal import AFTERWARDS, CLOSING, Event
from . import slurm
from .cause import BAD_NODE

WITHIN_S = 1800.0  # between two deaths on one node
LASTS_S = 86400.0
MOST = 3  # nodes at a time: if more seem bad, the cause is elsewhere, for example a file server
# exclusions of one node for one job, which came back to it: an administrator may have removed the
# first one
TRIES = 2
# kind of event -> the field with the job whose nodes are excluded
_FOR = {"excluded": "job", "submitted": "successor"}
_EXITED = re.compile(r"^srun: error: ([\w.-]+): tasks? [\d,-]+: Exited with", re.MULTILINE)


class Death(NamedTuple):
    """A start that died because of its node."""

    node: str
    at_s: float  # Unix seconds


class Exclusion(NamedTuple):
    """The excluded nodes of a job, as Slurm is told."""

    until_s: Mapping[str, float]  # of those that we exclude
    names: Sequence[str]  # these, and those that the user excluded
    changed: bool


def node_of_job(job: Job | None) -> str:
    """Return Slurm's name of the job's node; "" if it has several."""
    alone = job is not None and job.scheduler == "slurm" and job.nodes == 1
    return os.environ.get("SLURMD_NODENAME", "") if alone else ""


def receives_slurm_signals(job: Job | None) -> bool:
    """Whether Slurm's signals reach this process:
    it is a task, or the batch script itself. Source: srun(1).
    """
    return job is not None and os.environ.get("SLURM_TASK_PID") == str(os.getpid())


def find_node_at_fault(job: Job | None, tail: str) -> str:
    """Return the node on which a start died. Of several nodes:
    the only one with failed tasks, else "".
    """
    exited = {*_EXITED.findall(tail)} if job is not None and job.nodes > 1 else {node_of_job(job)}
    return exited.pop() if len(exited) == 1 else ""


def deaths_in_journal(events: Iterable[Event]) -> list[Death]:
    """Return the deaths that a journal shows.

    A node counts as lost if the scheduler restarted the job, and the supervisor before received no
    signal that explains it.
    """
    found, begin, known = [], Event(), True
    for event in events:
        if event["event"] == "begin":
            (job, restart), (before, first) = (
                owner.job_of(_as_mapping(each.get("owner"))) for each in (event, begin)
            )
            if not known and job == before and restart > first and begin.get("hears"):
                found.append((begin.get("node"), event))
            begin, known = event, False
        elif event["event"] == "exit" and event.get("cause") == BAD_NODE:
            found.append((event.get("node"), event))
        known = known or event["event"] in {"signal", *CLOSING, *AFTERWARDS}
    return [
        Death(node, float(event.get("time") or 0.0))
        for node, event in found
        if isinstance(node, str) and node
    ]


def nodes_to_exclude(deaths: Iterable[Death], now_s: float) -> dict[str, float]:
    """Return the nodes on which two starts died within 30 minutes, oldest first, and until when
    each is excluded.
    """
    times: dict[str, list[float]] = {}
    for node, at_s in sorted(deaths, key=lambda death: death.at_s):
        times.setdefault(node, []).append(at_s)
    ends = {
        node: max(
            (late + LASTS_S for early, late in pairwise(found) if late - early <= WITHIN_S),
            default=0.0,
        )
        for node, found in times.items()
    }
    return {
        node: end_s
        for node, end_s in sorted(ends.items(), key=lambda pair: pair[1])
        if end_s > now_s
    }


def choose_excludable(
    bad: Iterable[str], free: Collection[str], users: Collection[str], needed: int
) -> list[str]:
    """Return those of `bad` that can be excluded so that the job still finds `needed` of the
    `free` nodes.
    """
    chosen: list[str] = []
    for node in bad:
        left = {*free} - {*users, *chosen, node}
        if node not in users and len(chosen) < MOST and len(left) >= max(needed, 1):
            chosen.append(node)
    return chosen


def count_own_exclusions(events: Iterable[Event], job: str) -> Counter[str]:
    """Return the nodes that we excluded for this job, and how often the job came back to
    each meanwhile.
    """
    found, now = Counter[str](), dict[str, float]()
    for event in events:
        kind, nodes = str(event["event"]), _as_mapping(event.get("nodes"))
        # Slurm refused: the list holds only the user's nodes
        if kind in {"not_excluded", "not_requeued"}:
            now = {}
        elif kind == "begin":
            found.update(dict.fromkeys(now, 0))
            node = str(event.get("node"))
            if float(event.get("time") or 0.0) < now.get(node, 0.0):
                found[node] += 1
        elif job == event.get(_FOR.get(kind, "")) and nodes:
            now = {
                str(node): end_s for node, end_s in nodes.items() if isinstance(end_s, int | float)
            }
    found.update(dict.fromkeys(now, 0))
    return found


def exclusions_in_force(events: Sequence[Event], now_s: float) -> dict[str, float]:
    """Return the nodes that are excluded for the job now, and until when."""
    kinds = {"excluded", "not_excluded", "not_requeued"}
    last = next((event for event in reversed(events) if event["event"] in kinds), {"event": ""})
    nodes = _as_mapping(last.get("nodes")) if last["event"] == "excluded" else {}
    return {
        str(node): end_s
        for node, end_s in nodes.items()
        if isinstance(end_s, int | float) and end_s > now_s
    }


def plan_exclusion(
    job: Job, events: Sequence[Event], died: Iterable[Death], now_s: float
) -> Exclusion:
    """Return the nodes to exclude for the job's next start, given Slurm's record of the job and its
    partition.

    Raises:
        ClusterError: Slurm does not tell, or nobody can know which nodes the job may get.
    """
    seen = slurm.job_status(job)
    if seen is None or not seen.batch:
        raise ClusterError("Slurm knows no such batch job")
    if seen.nodes.get("Reservation"):
        raise ClusterError("it is in a reservation")
    now = slurm.hostnames(seen.nodes.get("ExcNodeList", ""))
    required = slurm.hostnames(seen.nodes.get("ReqNodeList", ""))
    before = count_own_exclusions(events, job.id)
    users = [node for node in now if node not in before]
    known = slurm.partition_nodes(seen.options.get("partition", ""))
    bad = {
        node: end_s
        for node, end_s in nodes_to_exclude(died, now_s).items()
        if node in known and node not in required
    }
    kind = known.get(os.environ.get("SLURMD_NODENAME", ""))
    free = [
        name
        for name, of in known.items()
        if kind and of.usable and of.is_equivalent(kind, seen.nodes.get("Features"))
    ]
    chosen = choose_excludable(bad, free, users, job.nodes)
    return Exclusion(
        {node: bad[node] for node in chosen}, [*users, *chosen], {*users, *chosen} != {*now}
    )


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
