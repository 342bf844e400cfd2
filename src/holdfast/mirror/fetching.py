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
from .records import copy_folder
from .sending import CheckpointContents


class CopyFetcher:
    """Fetches the copy `name` of an attempt into a local folder."""

    def __init__(self, place: Place, attempt: int, name: str) -> None:
        self._place, self._name = place, name
        self._source = copy_folder(attempt, name)

    def fetch_all(self, into: Path) -> int:
        """Write all files into the folder `into`; the manifest comes last."""
        modes.inherit_mode(into)
        wanted = self._read_contents()
        for name in sorted(wanted.files):
            disk.make_dirs((into / name).parent)
            try:
                self._receive_file(wanted, name, into / name)
            except Damaged:  # like every read: bytes that differ are read once more
                self._receive_file(wanted, name, into / name)
        disk.write(into / MANIFEST, [wanted.raw])
        held = {(into / name).parent for name in wanted.files} | {into}
        for inner in sorted(held):
            disk.sync_dir(inner)
        return wanted.size_bytes

    def fetch_one(self, name: str, into: Path) -> None:
        """Write one file to `into`."""
        modes.inherit_mode(into.parent)
        wanted = self._read_contents()
        if name not in wanted.files:
            raise NotFound(f"{self._display_path(MANIFEST)}: has no file {name!r}")
        self._receive_file(wanted, name, into)
        disk.sync_dir(into.parent)

    def _read_contents(self) -> CheckpointContents:
        found = sending.decode_contents(
            self._read_small_file(MANIFEST), self._read_small_file, self._display_path(MANIFEST)
        )
        if found.name != self._name:
            raise Damaged(f"{self._display_path(MANIFEST)}: is that of {found.name}")
        return found

    def _receive_file(self, wanted: CheckpointContents, name: str, into: Path) -> None:
        try:
            disk.write(
                into,
                sending.verify_pieces(
                    self._get_pieces(name), wanted, name, self._display_path(name)
                ),
            )
        except FileExistsError:
            raise
        except BaseException:
            disk.remove_tree(into)
            raise

    def _get_pieces(self, name: str) -> Iterator[bytes]:
        try:
            yield from self._place.get(f"{self._source}/{name}")
        except FileNotFoundError:
            raise self._missing_error(name) from None

    def _read_small_file(self, name: str) -> bytes:
        try:
            return self._place.read(f"{self._source}/{name}")
        except FileNotFoundError:
            raise self._missing_error(name) from None

    def _missing_error(self, name: str) -> StoreError:
        """Return the error for a missing file: damage, or the whole copy was removed."""
        if name != MANIFEST and MANIFEST in self._place.names(self._source):
            return Damaged(f"{self._display_path(name)}: the file is missing")
        return NotFound(f"{self._place.shown}/{self._source}: no checkpoint is there (any more)")

    def _display_path(self, name: str) -> str:
        return f"{self._place.shown}/{self._source}/{name}"
