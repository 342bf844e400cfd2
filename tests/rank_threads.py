"""Ranks that are threads of one process, for what does not need processes."""

import threading
from concurrent.futures import ThreadPoolExecutor

from holdfast.ranks import Ranks

WAIT_S = 20.0


class Outcomes(list):
    """What a piece of work returned or raised on each rank. Errors that nobody looks at are raised as this is dropped:
    pytest makes a failure of such an error.
    """

    seen = False
    __hash__ = None

    def __iter__(self):
        self.seen = True
        return super().__iter__()

    def __getitem__(self, which):
        self.seen = True
        return super().__getitem__(which)

    def __eq__(self, other):
        self.seen = True
        return super().__eq__(other)

    def __del__(self):
        if errors := [] if self.seen else [each for each in self if isinstance(each, BaseException)]:
            raise BaseExceptionGroup("ranks failed, and nobody looked at their outcomes", errors)


class Shared:
    """Keys and values of all threads."""

    def __init__(self):
        self.values = {}
        self.turn = threading.Lock()

    def put(self, key, value):
        with self.turn:
            self.values[key] = bytes(value)

    def get(self, key):
        with self.turn:
            return self.values.get(key)

    def drop(self, key):
        with self.turn:
            self.values.pop(key, None)

    def reconnect(self):
        return self


def ranks(world, timeout_s=None):
    shared = Shared()
    return [Ranks(rank, world, shared, timeout_s=timeout_s or WAIT_S) for rank in range(world)]


def everywhere(world, work, timeout_s=None):
    """What `work(ranks)` returned or raised on each of so many ranks."""

    def outcome(mine):
        try:
            return work(mine)
        except Exception as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return Outcomes(pool.map(outcome, ranks(world, timeout_s)))
