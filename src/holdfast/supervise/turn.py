"""Turn: a task of a chain waits until the task before it is gone."""

from __future__ import annotations

import time
from pathlib import Path

from .. import journal, owner
from ..cluster import chain
from ..job import Job
from ..journal import Event
from ..terminal import say
from .place import JOURNAL, living

LOOK_S = 2.0  # between two questions to Slurm


def await_turn(directory: Path, here: Job | None) -> None:
    """Wait while supervisors of other tasks of this array end in `directory`, as long as Slurm lets them.

    It starts the next task in the second in which it tells one to end. Who said good-bye, is provably gone, or whose task
    is over as Slurm says, is not waited for; the last is noted in the journal. Others are left to `place.enter`.
    """
    earlier, until_s = _earlier(directory, here), 0.0
    while here is not None and earlier:
        over = [begin for begin in earlier if chain.has_ended(begin["owner"], here)]
        if over:
            journal.append(directory / JOURNAL, [_good_bye(begin) for begin in over], sync=True)
        elif not until_s:
            patience_s = chain.patience_s()
            until_s = time.monotonic() + patience_s
            task, who = chain.task_of(earlier[0]["owner"], here), owner.describe(earlier[0]["owner"])
            say(
                f"{directory}: task {task} of this array is still ending ({who}); waits up to {patience_s:.0f} s for it"
            )
        elif time.monotonic() > until_s:
            return
        else:
            time.sleep(LOOK_S)
        earlier = _earlier(directory, here)


def _earlier(directory: Path, here: Job | None) -> list[Event]:
    return [each for each in living(directory / JOURNAL) if chain.task_of(each.get("owner") or {}, here) is not None]


def _good_bye(begin: Event) -> Event:
    """What it can no longer say itself."""
    facts = {"supervisor": begin.get("supervisor"), "why": "its task is over, as Slurm says"}
    return {"event": "failed", "time": time.time(), **facts}
