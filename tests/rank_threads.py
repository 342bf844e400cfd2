"""Ranks that are threads of one process, for what does not need processes."""

import threading
from concurrent.futures import ThreadPoolExecutor

from holdfast.ranks import Ranks

WAIT_S = 20.0


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

    def twin(self):
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
        return list(pool.map(outcome, ranks(world, timeout_s)))
