"""Runs whose ranks are threads of this process: what they do together does not need processes."""

import threading
from concurrent.futures import ThreadPoolExecutor

from holdfast.run import session as room
from rank_threads import Outcomes, ranks

HERE = threading.local()


def among_threads(monkeypatch):
    """A function of a world's size and of `work`: what `work(rank)` returned or raised on each rank. Each run that it
    enters is one run of all of them.
    """
    monkeypatch.setattr(room, "here", lambda: next(HERE.runs))
    monkeypatch.setattr(room, "speak_for", lambda rank: None)  # one process has one number

    def outcomes(world, work, timeout_s=20.0):
        turns = [ranks(world, timeout_s) for _ in range(8)]  # one for each run that the work makes

        def outcome(rank):
            HERE.runs = iter([turn[rank] for turn in turns])
            try:
                return work(rank)
            except (Exception, SystemExit) as error:
                return error

        with ThreadPoolExecutor(world) as pool:
            return Outcomes(pool.map(outcome, range(world)))

    return outcomes
