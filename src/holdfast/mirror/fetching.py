"""Fetching: brings a copy back from a place, file by file, each checked against the manifest on
its way to the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .. import disk, modes
from ..errors import Damaged, NotFound, StoreError
from ..store.format import MANIFEST
from . import sending
from .place import Place
from .records import folder
from .sending import Contents


class Fetching:
    """The copy `name` of an attempt, on its way back."""

    def __init__(self, place: Place, attempt: int, name: str) -> None:
        self._place, self._name = place, name
        self._source = folder(attempt, name)

    def whole(self, into: Path) -> int:
        """Write all files into the folder `into`; the manifest comes last."""
        modes.inherit_mode(into)
        wanted = self._wanted()
        for name in sorted(wanted.files):
            disk.make_dirs((into / name).parent)
            try:
                self._receive(wanted, name, into / name)
            except Damaged:  # like every read: bytes that differ are read once more
                self._receive(wanted, name, into / name)
        disk.write(into / MANIFEST, [wanted.raw])
        held = {(into / name).parent for name in wanted.files} | {into}
        for inner in sorted(held):
            disk.sync_dir(inner)
        return wanted.size_bytes

    def one(self, name: str, into: Path) -> None:
        """Write one file to `into`."""
        modes.inherit_mode(into.parent)
        wanted = self._wanted()
        if name not in wanted.files:
            raise NotFound(f"{self._shown(MANIFEST)}: has no file {name!r}")
        self._receive(wanted, name, into)
        disk.sync_dir(into.parent)

    def _wanted(self) -> Contents:
        found = sending.contents(self._read(MANIFEST), self._read, self._shown(MANIFEST))
        if found.name != self._name:
            raise Damaged(f"{self._shown(MANIFEST)}: is that of {found.name}")
        return found

    def _receive(self, wanted: Contents, name: str, into: Path) -> None:
        try:
            disk.write(into, sending.verified(self._get(name), wanted, name, self._shown(name)))
        except FileExistsError:
            raise
        except BaseException:
            disk.remove_tree(into)
            raise

    def _get(self, name: str) -> Iterator[bytes]:
        try:
            yield from self._place.get(f"{self._source}/{name}")
        except FileNotFoundError:
            raise self._missing(name) from None

    def _read(self, name: str) -> bytes:
        try:
            return self._place.read(f"{self._source}/{name}")
        except FileNotFoundError:
            raise self._missing(name) from None

    def _missing(self, name: str) -> StoreError:
        """Return the error for a missing file: damage, or the whole copy was removed."""
        if name != MANIFEST and MANIFEST in self._place.names(self._source):
            return Damaged(f"{self._shown(name)}: the file is missing")
        return NotFound(f"{self._place.shown}/{self._source}: no checkpoint is there (any more)")

    def _shown(self, name: str) -> str:
        return f"{self._place.shown}/{self._source}/{name}"
