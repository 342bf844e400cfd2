"""Copying: copies a committed checkpoint to a place, file by file. Files that are there already
are not sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..errors import Damaged, StoreError
from ..store import format
from ..store.format import MANIFEST, parse_name
from . import records, sending
from .place import NotKept, Place
from .records import Foreign, copy_folder, manifest_path
from .sending import CheckpointContents

THERE = "already there"
COPIED = "copied there"
READ_BACK = "read back"

MOST_SENT_AGAIN = 3  # how often a file is sent again that the place kept wrongly

T = TypeVar("T")


class Copied(NamedTuple):
    """The result of a copy. `how`: all the ways in which its files were verified."""

    size_bytes: int
    sent_bytes: int
    copied_bytes: int  # within the place
    how: str
    took_s: float


class CheckpointCopier:
    """Copies checkpoints to one place, and remembers which files are there already."""

    def __init__(self, place: Place) -> None:
        self._place = place
        # digest and size of files in whole copies -> path
        self._whole: dict[tuple[str, int], str] = {}
        self._learned = False
        # the size up to which the place has refused to copy a file: such files are sent
        self._sent_bytes = -1

    def copy(
        self, attempt: int, path: Path, read_back: bool, require: Callable[[], None]
    ) -> Copied:
        """Copy the checkpoint at `path`.
        `require` raises if a later attempt has claimed the place.
        """
        began, wanted = time.monotonic(), sending.read_local_contents(path)
        target = copy_folder(attempt, wanted.name)
        require()
        if self._is_committed(attempt, wanted):
            self._remember_files(target, wanted)
            return Copied(wanted.size_bytes, 0, 0, THERE, time.monotonic() - began)
        self._learn_newest_copy()
        one = _CopyInProgress(self._place, path, target, wanted, read_back)
        listed = cache(lambda inside: self._place.names(f"{target}/{inside}".rstrip("/")))
        sent = copied = 0
        hows = set()
        for name in sorted(wanted.files):
            inside, _, last = name.rpartition("/")
            how = one.verify_existing(name) if last in listed(inside) else ""
            if not how and wanted.files[name].size_bytes > self._sent_bytes:
                how = self._copy_within(one, name)
                copied += wanted.files[name].size_bytes if how else 0
            if not how:
                how = _send_until_kept(partial(one.send_file, name))
                sent += wanted.files[name].size_bytes
            hows.add(how)
        require()  # the last check before the manifest
        _send_until_kept(partial(self._commit, attempt, wanted))
        self._remember_files(target, wanted)
        return Copied(
            wanted.size_bytes, sent, copied, ", ".join(sorted(hows)), time.monotonic() - began
        )

    def forget_copy(self, target: str) -> None:
        """Forget the files of this copy, because it is damaged or about to be removed."""
        for key, path in [*self._whole.items()]:
            if path == target or path.startswith(f"{target}/"):
                del self._whole[key]

    def _is_committed(self, attempt: int, wanted: CheckpointContents) -> bool:
        """Whether the manifest is there. A damaged one of ours is removed, to be written again."""
        path = manifest_path(attempt, wanted.name)
        try:
            found = self._place.read(path)
        except FileNotFoundError:
            return False
        if found == wanted.raw:
            return True
        try:
            format.decode_head(found, path)
        except Damaged:
            self._place.remove(path)
            return False
        raise Foreign(f"{self._place.shown}/{path}: another checkpoint lies there under this name")

    def _commit(self, attempt: int, wanted: CheckpointContents) -> None:
        path = manifest_path(attempt, wanted.name)
        try:
            self._place.create(path, wanted.raw)
        except FileExistsError:
            if not self._is_committed(attempt, wanted):
                raise NotKept(f"{self._place.shown}/{path}: was damaged") from None
        if self._place.read(path) != wanted.raw:
            raise NotKept(f"{self._place.shown}/{path}: differs from what was sent")

    def _copy_within(self, one: _CopyInProgress, name: str) -> str:
        """Copy an unchanged file within the place,
        and verify it there; return how, or "" if it must be sent.
        """
        file = one.wanted.files[name]
        source = self._whole.get((file.digest, file.size_bytes))
        if source is None:
            return ""
        try:
            if not self._place.copy(source, one.path_of(name)):
                self._sent_bytes = file.size_bytes
                return ""
        except FileNotFoundError:  # it was removed
            self.forget_copy(source)
            return ""
        if not one.verify_existing(name):  # the source of the copy is damaged
            self.forget_copy(source)
            return ""
        return COPIED

    def _remember_files(self, target: str, wanted: CheckpointContents) -> None:
        self._whole.update(
            {
                (file.digest, file.size_bytes): f"{target}/{name}"
                for name, file in wanted.files.items()
            }
        )

    def _learn_newest_copy(self) -> None:
        """Note the files of the newest copy there, once."""
        if self._learned:
            return
        for attempt in sorted(
            filter(None, map(records.parse_attempt_folder, self._place.names(records.CHECKPOINTS)))
        ):
            names = [
                name
                for name in self._place.names(copy_folder(attempt))
                if parse_name(name) is not None
            ]
            for name in sorted(names)[-1:]:
                self._learn_copy(copy_folder(attempt, name))
        self._learned = True

    def _learn_copy(self, target: str) -> None:
        try:
            raw = self._place.read(f"{target}/{MANIFEST}")
            wanted = sending.decode_contents(
                raw, lambda part: self._place.read(f"{target}/{part}"), target
            )
        except (FileNotFoundError, StoreError):
            return  # no whole copy, or a damaged one: nothing is taken from there
        self._remember_files(target, wanted)


class _CopyInProgress:
    """One checkpoint while it is copied to the folder `target`."""

    def __init__(
        self, place: Place, path: Path, target: str, wanted: CheckpointContents, read_back: bool
    ) -> None:
        self.wanted = wanted
        self._place, self._path, self._target = place, path, target
        self._read_back = read_back

    def path_of(self, name: str) -> str:
        return f"{self._target}/{name}"

    def send_file(self, name: str) -> str:
        """Send a file; return how the place has shown that it holds it.

        Raises:
            NotKept: the place holds other bytes than were sent.
        """
        pieces = partial(sending.read_pieces, self._path, self.wanted, name)
        for again in (True, False):
            try:
                return self._verify_sent(
                    name,
                    self._place.put(self.path_of(name), self.wanted.files[name].size_bytes, pieces),
                )
            except NotKept:
                raise
            except Damaged:  # like every read: bytes that differ are read once more
                if not again:
                    raise
        raise AssertionError

    def verify_existing(self, name: str) -> str:
        """Return THERE if the file is at the place and undamaged; else ""."""
        pieces = partial(sending.read_pieces, self._path, self.wanted, name)
        try:
            self._verify_sent(
                name,
                self._place.check(self.path_of(name), self.wanted.files[name].size_bytes, pieces),
            )
        except (Damaged, FileNotFoundError):
            return ""
        return THERE

    def _verify_sent(self, name: str, how: str) -> str:
        """Return how the sent file was verified: by its server's checksum, or by reading it
        back now.
        """
        if how and not self._read_back:
            return how
        where = f"{self._place.shown}/{self.path_of(name)}"
        try:
            for _ in sending.verify_pieces(
                self._place.get(self.path_of(name)), self.wanted, name, where
            ):
                pass
        except Damaged as error:
            raise NotKept(f"{error}; send it again") from None
        return READ_BACK


def _send_until_kept(send: Callable[[], T]) -> T:
    """Send a file, and send it again if the place has stored other bytes."""
    for _ in range(MOST_SENT_AGAIN):
        with suppress(NotKept):
            return send()
    return send()
