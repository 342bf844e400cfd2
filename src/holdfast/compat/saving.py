"""An atomic and durable torch.save."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import disk

_BUFFER_BYTES = 1 << 20


def atomic_torch_save(obj: Any, f: str | Path, **kwargs: Any) -> None:
    """As `torch.save(obj, f, **kwargs)`. When this returns, `f` is the whole new file and survives
    power loss.

    Before that, or after an interruption, `f` is the old file. torch writes the tree of `obj` as
    pickle; read it with `torch.load(f, weights_only=True)`, which executes nothing.
    """
    with (
        disk.open_replacement(Path(os.path.abspath(f))) as put,
        io.BufferedWriter(_WriteFunction(put), _BUFFER_BYTES) as sink,
    ):
        torch.save(obj, sink, **kwargs)


class _WriteFunction(io.RawIOBase):
    """A file object whose `write` calls a function."""

    def __init__(self, put: Callable[[memoryview], None]) -> None:
        super().__init__()
        self._put = put

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        chunk = memoryview(data)
        self._put(chunk)
        return chunk.nbytes
