"""Turn: the run of a chain's task waits until the attempt of the task before is gone."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from .. import journal
from ..cluster import chain
from ..cluster.chain import Earlier
from ..job import Job
from ..journal import Log
from ..store import claiming
from ..terminal import say


def await_turn(root: Path, here: Job | None) -> None:
    """Wait while attempts of other tasks of this array end in the run at `root`."""
    chain.await_turn(
        root, lambda: [Earlier(log.owner, partial(_close, log)) for log in claiming.strangers(root)], here, say
    )


def _close(log: Log) -> None:
    journal.append(log.path, [{"event": "failed", "why": chain.OVER}], sync=True)
