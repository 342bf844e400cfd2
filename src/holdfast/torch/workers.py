"""Workers of a DataLoader: a signal that stops the run does not reach them; they end with the loop that they work for.

Schedulers and terminals signal whole process groups. A worker that died of it would take the last save with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from threading import Thread
from typing import Any

from torch.utils.data import _utils

from ..data.seeded import in_worker

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class WorkerInit:
    """Runs in a worker before its first sample: stopping is the main process's business."""

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users

    def __call__(self, worker: int) -> None:
        _heed_the_parent_alone()
        in_worker()
        if self._users is not None:
            self._users(worker)


def iterate(twin: Any) -> Iterator[Any]:
    """An iterator of the twin; its workers, while they start, are deaf to the signals that they are to ignore."""
    if not twin.num_workers:
        return iter(twin)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # children inherit it, fork and spawn alike
    try:
        if (twin.multiprocessing_context or multiprocessing).get_start_method() != "fork":
            resource_tracker.ensure_running()  # begun by the first worker instead, it would unblock what is blocked
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        return iter(twin)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def sheltered() -> Iterator[None]:
    """While a run lives, the workers of *any* DataLoader heed their parent alone: an evaluation's too, if forked.

    torch gives a worker its signal handlers itself, after every hook of ours: this is the one place to come in.
    """
    signal_handling: Any = _utils.signal_handling
    original = signal_handling._set_worker_signal_handlers  # noqa: SLF001

    def set_handlers() -> None:
        _heed_the_parent_alone()
        original()

    signal_handling._set_worker_signal_handlers = set_handlers  # noqa: SLF001
    try:
        yield
    finally:
        signal_handling._set_worker_signal_handlers = original  # noqa: SLF001


def _heed_the_parent_alone() -> None:
    """In a worker: ignore the signals that stop a run, except a SIGTERM by which the parent ends its workers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a handler would not be told who has sent it
    for number in _STOP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, set(_STOP_SIGNALS) - {signal.SIGTERM})
    Thread(target=_end_when_the_parent_says, daemon=True).start()


def _end_when_the_parent_says() -> None:
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid == os.getppid():
            os._exit(0)
