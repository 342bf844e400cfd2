"""Digests: xxh3_128 finds damage. In signed checkpoints SHA-256 stands in its place, which also
finds manipulation.

The length of a digest shows its algorithm: 32 or 64 hex digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import xxhash

from ..pages import Data, DistantBytes, byte_pieces

XXH3, SHA256 = "xxh3_128", "sha256"
HEX = {XXH3: re.compile(r"[0-9a-f]{32}"), SHA256: re.compile(r"[0-9a-f]{64}")}


def kind_of(digest: str) -> str:
    """Return the algorithm of a digest, by its length."""
    return SHA256 if len(digest) == 64 else XXH3


def hasher(kind: str = XXH3) -> Callable[..., Any]:
    """Return a hasher for data that comes in several pieces."""
    if kind == XXH3:
        return xxhash.xxh3_128
    import hashlib  # only signed runs need it

    return hashlib.sha256


def digest(data: bytes | bytearray | Data, kind: str = XXH3) -> str:
    """Return the digest of `data` in hex."""
    if kind == XXH3 and not isinstance(data, DistantBytes):
        return xxhash.xxh3_128_hexdigest(data)
    found = hasher(kind)()
    for piece in byte_pieces(data) if isinstance(data, DistantBytes) else (data,):
        found.update(piece)
    return str(found.hexdigest())


def joined_digest(digests: Iterable[str], kind: str = XXH3) -> str:
    """Return the digest of a file: the digest of its pieces' digests, concatenated."""
    return digest("".join(digests).encode(), kind)
