"""Staging: copies between CUDA devices and the host, in separate streams, and pinned memory.

Callers wait for their copies before they continue. With separate streams a copy does not wait for
the program's work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import cuda

from ..pages import Wait, address
from ..threads import Worker

_PORTABLE = 1  # cudaHostRegisterPortable: for every device
_streams: dict[torch.device, Any] = {}


class Moment:
    """A point in a program's work on a device. Copies begin as soon as the work before it is done.

    As usual in torch, this is the work in the current stream, and in streams that it waits for.
    """

    def __init__(self, device: torch.device) -> None:
        self._event = cuda.current_stream(device).record_event()
        if device not in _streams:
            _streams[device] = cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream = _streams[device]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Wait:
        """Begin to copy `source` over `target`, one of them on the device; return a function that
        waits for the end.

        Source: torch's CUDA semantics: record_stream keeps the memory from others until the stream
        is done with it.
        """
        self._stream.wait_event(self._event)
        with cuda.stream(self._stream):
            plain = source.resolve_conj().resolve_neg().contiguous()
            target.copy_(plain, non_blocking=True)
        for tensor in (source, target):
            if tensor.is_cuda:
                tensor.record_stream(self._stream)
        wait: Wait = self._stream.synchronize
        return wait


def pin(memory: memoryview, device: torch.device) -> Wait | None:
    """Pin `memory`, so that devices copy directly, at full speed; return a function that unpins it
    before it is freed.

    Return None if CUDA refuses. Copies still work then, through CUDA's own buffers.

    Source: torch.cuda._pin_memory_utils; CUDA Runtime API, cudaHostRegister.
    """
    place, owner = address(memory), os.getpid()

    def unpin() -> None:
        if os.getpid() == owner:  # a forked child has no CUDA
            _call_in_new_thread(lambda: _runtime(device).cudaHostUnregister(place))

    refusal = _call_in_new_thread(
        lambda: int(_runtime(device).cudaHostRegister(place, memory.nbytes, _PORTABLE))
    )
    return unpin if refusal == 0 else None


def _runtime(device: torch.device) -> Any:
    cuda.set_device(device)  # otherwise the first device would get a context of this process
    return cuda.cudart()  # type: ignore[no-untyped-call]


def _call_in_new_thread(function: Callable[[], Any]) -> Any:
    """Return the result of `function`; None if it raised.

    In a new thread, if the system gives one: CUDA keeps an error for the thread in which it
    occurred, and torch would report it for the next kernel of that thread.
    """
    outcome: list[Any] = []

    def work() -> None:
        with suppress(RuntimeError):
            outcome.append(function())

    worker = Worker(work, "holdfast-pin")
    try:
        worker.start()
    except RuntimeError:
        work()
    else:
        worker.wait()
    return outcome[0] if outcome else None
