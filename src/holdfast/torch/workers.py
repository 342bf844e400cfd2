"""Workers of a DataLoader: deaf to the signals that stop the run, and ended with the loop that they work for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import resource_tracker, util
from typing import Any, cast

from torch.utils.data import DataLoader

from ..data.seeded import in_worker

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class WorkerInit:
    """Runs in a worker before its first sample: stopping is the main process's business."""

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users

    def __call__(self, worker: int) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        in_worker()
        if self._users is not None:
            self._users(worker)


_alive: weakref.WeakSet[Any] = weakref.WeakSet()  # iterators with workers
_workers: weakref.WeakSet[Any] = weakref.WeakSet()  # their processes
_owners: set[int] = set()  # processes that end them: this one, and whichever it was forked from


def iterate(twin: DataLoader[Any], seed: int) -> Iterator[Any]:
    """An iterator of the twin; its workers, while they start, are deaf to the signals that they are to ignore."""
    twin.generator.manual_seed(seed)
    if not twin.num_workers:
        return iter(twin)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # children inherit it, fork and spawn alike
    try:
        if (twin.multiprocessing_context or multiprocessing).get_start_method() != "fork":
            resource_tracker.ensure_running()  # begun by the first worker instead, it would unblock what is blocked
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        batches: Any = iter(twin)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if os.getpid() not in _owners:
        _owners.add(os.getpid())
        _alive.clear()  # a parent's are not this process's to end
        _workers.clear()
        util.Finalize(None, _end_workers, exitpriority=100)  # in a child of multiprocessing, no atexit function runs
    _alive.add(batches)
    _workers.update(batches._workers)  # noqa: SLF001
    return cast("Iterator[Any]", batches)


def _end_workers() -> None:
    """Ends the workers before multiprocessing would: it sends SIGTERM, which they ignore, and waits for ever."""
    for batches in list(_alive):
        with suppress(Exception):  # the interpreter is ending; the next line ends whoever is left
            batches._shutdown_workers()  # noqa: SLF001
    for worker in list(_workers):
        with suppress(ValueError):
            worker.kill()
