"""Workers of a DataLoader ignore the signals that stop a run, and end with the loop that they work
for.

Schedulers and terminals signal whole process groups. If a worker died of such a signal, the last
save would fail.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from threading import Thread
from typing import Any

import torch
from torch.utils.data import dataloader

from ..data.seeded import mark_as_worker

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


class IgnoreStopSignals:
    """A `worker_init_fn` that makes a worker ignore stop signals: only the main process reacts to
    them.
    """

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users

    def __call__(self, worker: int) -> None:
        _ignore_stop_signals()
        if self._users is not None:
            self._users(worker)


class WorkerInit(IgnoreStopSignals):
    """An `IgnoreStopSignals` for the workers of `run.batches`: it marks the process as a worker,
    too.
    """

    def __call__(self, worker: int) -> None:
        mark_as_worker()
        super().__call__(worker)


def iterate(twin: Any) -> Iterator[Any]:
    """Return an iterator of the cloned loader; its workers ignore stop signals also if torch was
    imported after the run began.
    """
    with workers_ignore_stops():
        return iter(twin)


@contextmanager
def workers_ignore_stops() -> Iterator[None]:
    """Let the workers of *any* DataLoader ignore stop signals within this block, those of an
    evaluation, too.

    Persistent workers are seeded without a draw from the global generator: they start once in each
    process, so that a resumed run would draw once more than an uninterrupted one.
    """
    kind: Any = dataloader._MultiProcessingDataLoaderIter  # noqa: SLF001
    original = kind.__init__

    def init(self: Any, loader: Any) -> None:
        users, generator = loader.worker_init_fn, loader.generator
        if loader.persistent_workers and generator is None:
            loader.generator = torch.Generator()
            loader.generator.set_state(torch.get_rng_state())
        if not isinstance(users, IgnoreStopSignals):
            loader.worker_init_fn = IgnoreStopSignals(users)
        # until Unstopped runs: children inherit it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            method = (loader.multiprocessing_context or multiprocessing).get_start_method()
            if method != "fork":
                # started by the first worker, it would unblock these signals
                resource_tracker.ensure_running()
                signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
            if method == "forkserver":
                _start_forkserver()
            original(self, loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            loader.worker_init_fn, loader.generator = users, generator

    kind.__init__ = init
    try:
        yield
    finally:
        kind.__init__ = original


def _start_forkserver() -> None:
    """Start a new forkserver while stop signals are blocked, so that its children inherit that. A
    forkserver from before the run keeps serving its own children.
    """
    server: Any = forkserver._forkserver  # noqa: SLF001
    with server._lock:  # noqa: SLF001
        if server._forkserver_pid not in _forkservers:  # noqa: SLF001
            server._forkserver_pid = None  # noqa: SLF001  # its pipe stays open, and it lives as long as we do
    server.ensure_running()
    _forkservers.add(server._forkserver_pid)  # noqa: SLF001


_forkservers: set[int] = set()  # those that block the signals


def _ignore_stop_signals() -> None:
    """Ignore, in a worker, the signals that stop a run. A SIGTERM from the parent still ends it, or
    any SIGTERM once the parent has ended.
    """
    # a handler does not learn who sent it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for number in _STOP_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, set(_STOP_SIGNALS) - {signal.SIGTERM})
    # who asked for this worker; os.getppid() may be a forkserver
    parent = multiprocessing.parent_process()
    starter = os.getppid()
    Thread(
        target=_accept_sigterm_from, args=[parent.pid if parent else starter, starter], daemon=True
    ).start()


def _accept_sigterm_from(user: int | None, starter: int) -> None:
    while hasattr(signal, "sigwaitinfo"):  # macOS does not tell who sent it: there it stays blocked
        if (
            signal.sigwaitinfo({signal.SIGTERM}).si_pid == user
            or os.getppid() != starter
            or not _exists(user)
        ):
            os._exit(0)


def _exists(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return True
