"""Compressed data files: each is decompressed once, into the cache directory. In the middle of a
compressed one nothing can be read.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from ... import disk, scan
from ...errors import UsageError
from .cache import cache_dir

_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_REFUSED = (".zst", ".lz4")
_PIECE = 4 << 20  # bytes
_POLL_S = 0.2


def is_compressed(path: Path) -> bool:
    """Return whether the ending of the name says so.

    Raises:
        UsageError: it is compressed in a way that is not read.
    """
    if path.suffix in _REFUSED:
        raise UsageError(f"{path} is compressed, and cannot be entered anywhere: decompress it")
    return path.suffix in _OPENERS


def unpacked(path: Path, state: str, done: Callable[[int], None]) -> Path:
    """Return the decompressed copy of a file. It is made unless an earlier run made it for this
    `state`; of processes on one machine one makes it, and the others wait.

    Raises:
        UsageError: the file is damaged, or the copy cannot be written.
    """
    name = path.stem + (".tar" if path.suffix == ".tgz" else "")
    place = xxhash.xxh3_128_hexdigest(os.fsencode(f"{path}\0{state}"))
    copy = cache_dir() / "decompressed" / place / name
    try:
        disk.make_dirs(copy.parent)
        while (held := disk.lock(copy.with_name("lock"))) is None and not scan.is_file(copy):
            time.sleep(_POLL_S)
        try:
            if not scan.is_file(copy):
                _unpack(path, copy, done)
        finally:
            if held is not None:
                os.close(held)
    except OSError as error:
        why = f"{path} cannot be decompressed into {copy.parent}: {error.strerror or error}"
        raise UsageError(f"{why}; HOLDFAST_CACHE names another directory") from error
    return copy


def _unpack(path: Path, copy: Path, done: Callable[[int], None]) -> None:
    try:
        with (
            open(path, "rb") as raw,
            _OPENERS[path.suffix](raw) as packed,
            disk.open_replacement(copy) as put,
        ):
            while piece := packed.read(_PIECE):
                put(piece)
                done(raw.tell())
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UsageError(f"{path}: {error}") from error
