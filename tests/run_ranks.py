"""Runs whose ranks are threads of this process: what they do together does not need processes."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from holdfast import Every, Last, Run
from holdfast.run import session as room
from holdfast.run.saver import Saver
from rank_threads import Outcomes, ranks

HERE = threading.local()


def among_threads(monkeypatch):
    """A function of a world's size and of `work`: what `work(rank)` returned or raised on each rank. Each run that it
    enters is one run of all of them.
    """
    monkeypatch.setattr(room, "current_ranks", lambda: next(HERE.runs))
    monkeypatch.setattr(room, "set_rank", lambda rank: None)  # one process has one number

    def outcomes(world, work, timeout_s=60.0):
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


class Part:
    """What one rank has: something that is the same everywhere, and something of its own."""

    def __init__(self, rank=0):
        self.common, self.own = 0, rank

    def learn(self):
        self.common += 1
        self.own = (self.own * 31 + self.common) % (2**61 - 1)

    def state_dict(self):
        return {"common": self.common, "own": self.own}

    def load_state_dict(self, state):
        self.common, self.own = state["common"], state["own"]


def train(path, rank, steps=12, before=lambda run: None, part=None, **options):
    """What the rank's part is in the end."""
    part = part or Part(rank)
    with Run(path, {"part": part}, **{"every": Every(steps=4), "keep": Last(1000), **options}) as run:
        for _ in run.steps(steps):
            before(run)
            part.learn()
    return part.common, part.own


def training(among):
    """A function that trains on all ranks; what each of them came to."""
    return lambda path, world=2, timeout_s=60.0, **options: among(
        world, lambda rank: train(path, rank, **options), timeout_s
    )


def alone(steps=12, world=2):
    """What the ranks end with when nothing happens."""
    parts = [Part(rank) for rank in range(world)]
    for part in parts * steps:
        part.learn()
    return [(part.common, part.own) for part in parts]


def on(rank, step, act):
    """To be done before each step: `act`, on that rank, when it comes to that step."""
    return lambda run: act(run) if (run._session.ranks.rank, run.step) == (rank, step) else None


def stop_at(step, of=0):
    """Has rank `of` stop when it comes to that step; wherever the others are."""
    stop = on(of, step, lambda run: run._session.stop.receive_from_rank("SIGUSR1"))
    return lambda run: time.sleep(0.002) or stop(run)


def noted_saves(monkeypatch):
    """Step and reason of each save, by rank."""
    found, save = {}, Saver.save

    def noted(saves, reason, *rest, **options):
        found.setdefault(saves._ranks.rank, []).append((saves._progress.position.step, reason))
        return save(saves, reason, *rest, **options)

    monkeypatch.setattr(Saver, "save", noted)
    return found
