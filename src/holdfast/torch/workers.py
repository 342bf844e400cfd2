"""Workers of a DataLoader: they ignore the signals that stop a run, and end with the loop that they work for.

Schedulers and terminals signal whole process groups. If a worker died of such a signal, the last save would fail.
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
    """Runs in a worker before its first sample: only the main process reacts to a stop."""

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users

    def __call__(self, worker: int) -> None:
        _ignore_stop_signals()
        in_worker()
        if self._users is not None:
            self._users(worker)


def iterate(twin: Any) -> Iterator[Any]:
    """An iterator of the twin; the signals that its workers will ignore are blocked while they start."""
    if not twin.num_workers:
        return iter(twin)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # children inherit it, fork and spawn alike
    try:
        if (twin.multiprocessing_context or multiprocessing).get_start_method() != "fork":
            resource_tracker.ensure_running()  # started by the first worker, it would unblock these signals
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        return iter(twin)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def sheltered() -> Iterator[None]:
    """During a run, the workers of *any* DataLoader ignore stop signals: an evaluation's too, if they are forked.

    torch sets a worker's signal handlers after every hook of ours: this is the one place where ours can follow.
    """
    signal_handling: Any = _utils.signal_handling
    original = signal_handling._set_worker_signal_handlers  # noqa: SLF001

    def set_handlers() -> None:
        _ignore_stop_signals()
        original()

    signal_handling._set_worker_signal_handlers = set_handlers  # noqa: SLF001
    try:
        yield
    finally:
        signal_handling._set_worker_signal_handlers = original  # noqa: SLF001


def _ignore_stop_signals() -> None:
    """In a worker: ignore the signals that stop a run, except a SIGTERM from its user, which ends the worker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a handler does not learn who sent it
    for number in _STOP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, set(_STOP_SIGNALS) - {signal.SIGTERM})
    parent = multiprocessing.parent_process()  # who asked for this worker; os.getppid() may be a forkserver
    Thread(target=_end_on_sigterm_from, args=[parent.pid if parent else os.getppid()], daemon=True).start()


def _end_on_sigterm_from(pid: int | None) -> None:
    while hasattr(signal, "sigwaitinfo"):  # macOS does not tell who sent it: there it stays blocked
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid == pid:
            os._exit(0)
