"""Run: checks whether a run's saves fit into the time that the cluster leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .. import journal, scan, young_daly
from ..batch.script import BatchScript, ScriptContext, parse_script
from ..cluster import job_leader
from ..cluster.hold import HOLD
from ..disk_space import describe_purge
from ..errors import StoreError
from ..interval import exit_time_s, notice_time_s
from ..legible import counted, duration
from ..run.schedule import chosen_interval
from ..store import unsound
from ..store.checkpoint_index import CheckpointIndex
from ..store.locate import locate
from ..store.refusal import blocked_directories
from ..young_daly import ChoiceWithInputs
from .check import Check, ok, problem, warning
from .scheduler import SlurmSettings


def check_purge(run: Path, days: float | None) -> Iterator[Check]:
    """Check which files of a run a site's purge will delete,
    if it deletes files after so many days.
    """
    if days is None:
        return
    told = describe_purge(run, days, time.time())
    if told is None:
        yield ok("purge", f"no file of the run is nearly {days:g} days old")
    else:
        what, _, todo = told.partition("; ")
        yield warning("purge", what, todo)


def check_rights(run: Path) -> Iterator[Check]:
    """Check that this user may move and remove all that a start and a prune have to, including
    files of other users.
    """
    for bar in blocked_directories(run):
        yield problem("rights", bar.what, bar.todo)


class RunFacts(NamedTuple):
    """The facts about a run that are on the disk."""

    directory: Path  # as the user named it
    run: Path  # contains its checkpoints
    script: BatchScript | None  # the batch script, if holdfast submit has kept one
    save_s: float | None
    chosen: ChoiceWithInputs | None = None  # the interval that Auto() chose last

    @property
    def partition(self) -> str | None:
        option = self.script.option("partition") if self.script else None
        return option.value if option else None

    @property
    def size_bytes(self) -> int:
        """The size of its newest checkpoint; 0 if none can be read."""
        try:
            return locate(self.run).select(None).size_bytes
        except (StoreError, OSError):
            return 0


def read_run_facts(directory: Path, save_s: float | None) -> RunFacts:
    """Read the batch script and where the run is."""
    try:
        script = parse_script(
            (job_leader.script_of(directory) or directory).read_text(
                encoding="utf-8", errors="replace"
            ),
            ScriptContext(),
        )
    except OSError:
        script = None
    run = job_leader.reported_run_path(directory) or directory
    return RunFacts(
        directory,
        run,
        script,
        save_s,
        next(filter(None, map(chosen_interval, reversed(journal.logs(run)))), None),
    )


def check_run(known: RunFacts, settings: SlurmSettings | None) -> Iterator[Check]:
    """Check its checkpoints, and the duration of its saves against the time left for them."""
    yield from _check_checkpoints(known)
    held = next(
        (place for place in (known.directory, known.run) if scan.exists(place / HOLD)), None
    )
    if held is not None:
        yield warning("hold", "it is not requeued", f"holdfast release {held}")
    if known.save_s is None:
        yield warning(
            "saves",
            "none was made yet, so nobody knows what one takes",
            "ask again after the first",
        )
        return
    if known.chosen is not None:
        yield ok("interval", young_daly.explain_choice(known.chosen))
    took = f"your save takes {duration(known.save_s)}"
    yield ok("saves", took)
    need_s = exit_time_s(known.save_s)
    lead = known.script.signal.lead_s if known.script and known.script.signal else None
    if lead is not None and lead < need_s:
        submit = f"holdfast submit --lead {notice_time_s(known.save_s)}"
        yield problem("notice", f"{took}, and the notice comes {lead} s before the end", submit)
    elif lead is not None:
        yield ok("notice", f"{lead} s before the end: enough for a save")
    if settings is not None and not settings.preempts.startswith("OFF"):
        grace = f"your grace is {duration(settings.grace_s)}"
        if settings.grace_s < need_s:
            todo = (
                "a preemption loses what came after the last periodic save: "
                "save more often (every=), or less"
            )
            yield problem("grace", f"{took}, {grace}", todo)
        else:
            yield ok("grace", f"{grace}: enough for a save")


def _check_checkpoints(known: RunFacts) -> Iterator[Check]:
    aside = scan.glob(known.run / "quarantine", "step-*")
    if aside:
        yield warning(
            "quarantine",
            f"{counted(len(aside), 'checkpoint')} set aside",
            f"holdfast ls {known.run} says why",
        )
    try:
        found = locate(known.run).checkpoints()
    except StoreError as error:
        yield warning(
            "checkpoints", str(error), "none was committed yet, or this is not the run's directory"
        )
        return
    gone = [] if found else journal.unaccounted_checkpoints(journal.logs(known.run))
    if gone or (aside and not found):
        what = f"none is left; the last that was saved is {gone[-1]}" if gone else "none is left"
        yield problem(
            "checkpoints",
            what,
            "put a copy back; a start is refused unless it says allow_fresh=True",
        )
        return
    if not found:
        yield warning("checkpoints", "none was committed yet", "ask again after the first")
        return
    try:
        manifest = found[-1].head
        yield ok("checkpoints", f"{len(found)}, the newest of step {manifest.step}")
    except (StoreError, OSError) as error:
        yield problem("checkpoints", str(error), f"holdfast verify {known.run}")
    what, _, todo = unsound.describe_newest(CheckpointIndex(known.run)).partition("; ")
    if what:
        yield problem("weights", what, todo)
