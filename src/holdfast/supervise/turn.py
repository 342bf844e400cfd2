"""Turn: the supervisor of a chain's task waits until that of the task before is gone."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from .. import journal
from ..cluster import chain
from ..cluster.chain import Earlier
from ..job import Job
from ..journal import Event
from ..terminal import say
from .place import JOURNAL, living


def await_turn(directory: Path, here: Job | None) -> None:
    """Wait while supervisors of other tasks of this array end in `directory`."""
    path = directory / JOURNAL
    chain.await_turn(
        directory,
        lambda: [Earlier(begin.get("owner") or {}, partial(_close, path, begin)) for begin in living(path)],
        here,
        say,
    )


def _close(path: Path, begin: Event) -> None:
    facts = {"supervisor": begin.get("supervisor"), "why": chain.OVER}
    journal.append(path, [{"event": "failed", "time": time.time(), **facts}], sync=True)
