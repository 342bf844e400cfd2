"""Results that are kept between runs, such as the index of a data file: each is computed anew when
what it was made from has changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import xxhash

from ... import disk, terminal

_MAGIC = b"holdfast index 1 "


def cache_dir() -> Path:
    """Return the directory for what is kept between runs; it may not exist."""
    chosen = os.environ.get("HOLDFAST_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(chosen) if chosen else Path(shared, "holdfast")


def kept(kind: str, of: str, state: str, build: Callable[[], bytes]) -> bytes:
    """Return what `build` returned for this `state` of `of`, also in an earlier run.

    Any number of processes may build it at once: what is kept is complete, and has a digest.
    """
    header = os.fsencode(f"{kind}\0{of}\0{state}\n")
    name = xxhash.xxh3_128_hexdigest(os.fsencode(f"{kind}\0{of}"))
    path = cache_dir() / "indexes" / name[:2] / name  # no folder with all of them: it is listed
    found = _load(path, header)
    if found is None:
        found = build()
        try:
            disk.make_dirs(path.parent)
            disk.replace_with(path, [_MAGIC, _digest(header, found), b"\n", header, found])
        except OSError as error:
            warn_unwritable(str(error))
    return found


def _load(path: Path, header: bytes) -> bytes | None:
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    begin = _MAGIC + stored[len(_MAGIC) : len(_MAGIC) + 32] + b"\n" + header
    found = stored[len(begin) :]
    whole = _MAGIC + _digest(header, found) + b"\n" + header
    return found if stored[: len(begin)] == begin == whole else None


def _digest(header: bytes, found: bytes) -> bytes:
    digest = xxhash.xxh3_128(header)
    digest.update(found)
    return digest.hexdigest().encode()


@cache
def warn_unwritable(why: str) -> None:
    """Say once that nothing can be kept, and what follows."""
    terminal.warn(
        f"{why}: indexes of data files are not kept, and are made again at each start; "
        "HOLDFAST_CACHE is the directory for them"
    )
